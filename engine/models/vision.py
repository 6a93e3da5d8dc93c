"""Models that read images: the encoder beside the text model, and how its processor prepares an image. Formats:
config.json and preprocessor_config.json as transformers writes them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isqrt

from engine.bundle.vision import Cutting, VisionSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models import vision_network
from engine.models.config_fields import ConfigFields, architectures_of
from engine.models.dense_families import LLAMA, QWEN2, QWEN3
from engine.models.expert_families import QWEN3_5_MOE_NESTED
from engine.models.network import Family, FamilyDetails
from engine.models.post_norm_families import GEMMA3_NESTED
from engine.models.qwen_vl import QWEN2_5_VL, QWEN3_VL, read_qwen2_5_vl, read_qwen3_vl
from engine.models.recurrent_families import QWEN3_5_NESTED

# Gemma 3: what stands for a row of an image, and where files of the text alone lack it.
PAD, UNUSED = "<image_soft_token>", "<pad>"
BILINEAR, BICUBIC, MOST_TILES = 2, 3, 12
INTERNVL_PAD = "<IMG_CONTEXT>"
INTERNVL_TEXTS = {QWEN2.name: QWEN2, QWEN3.name: QWEN3}


def read_vision(files: vision_network.VisionFiles) -> vision_network.Encoder | None:
    """None for a model that reads text only. CompileError for a damaged file, UnsupportedModel by name."""
    reader = next((READERS[name] for name in architectures_of(files.config) if name in READERS), None)
    return None if reader is None else reader(files)


def reads_images(config: Mapping[str, object]) -> bool:
    """Whether a checkpoint of this config.json has an encoder of images that is compiled with it."""
    has_encoder = isinstance(config.get("vision_config"), Mapping)
    return any(name in READERS and (has_encoder or name not in MAY_BE_BLIND) for name in architectures_of(config))


def text_alone(config: Mapping[str, object]) -> dict[str, object]:
    """The config of the same model without its encoder, where checkpoints of its class come without one, too."""
    may_be_blind = any(name in MAY_BE_BLIND for name in architectures_of(config))
    return {name: value for name, value in config.items() if name != "vision_config" or not may_be_blind}


def deepstack_layers(config: Mapping[str, object]) -> int:
    """Layers of the text that add rows of their own to those of an image. CompileError when they are no list."""
    encoder = config.get("vision_config")
    if not reads_images(config) or not isinstance(encoder, Mapping):
        return 0
    listed = encoder.get("deepstack_visual_indexes") or []
    if not isinstance(listed, list):
        raise CompileError("config.json: deepstack_visual_indexes must be a list of layers")
    return len(listed)


def _read_idefics3(files: vision_network.VisionFiles) -> vision_network.VisionNetwork:
    """Idefics3 and SmolVLM: SigLIP over square tiles, pixels shuffled into depth, one matrix."""
    config, encoder, processor = files.fields()
    sides = processor.group("max_image_size")
    side = encoder.integer("image_size", 1, 4096, 224)
    if sides is not None and sides.integer("longest_edge", 1, 4096) != side:
        raise UnsupportedModel("preprocessor_config.json: max_image_size is not the image_size of vision_config")
    size = processor.group("size")
    shuffle = config.integer("scale_factor", 1, 64, 2)
    splits = processor.flag("do_image_splitting", True)
    network = vision_network.VisionNetwork(
        spec=VisionSpec(
            file=vision_network.VISION_FILE,
            cutting=Cutting.GRID if splits else Cutting.WHOLE,
            side=side,
            tokens=1,
            token=vision_network.token(files, "<image>"),
            placeholder="<image>",
            pad="<image>",
            resampling=vision_network.resampling(processor, 1),
            longest=size.integer("longest_edge", 1, 1 << 14) if size is not None else 4 * side,
            opening="<fake_token_around_image>",
            tile_tag="<row_{row}_col_{column}>",
            whole_tag="<global-img>",
            row_end="\n",
            closing="<fake_token_around_image>",
        ),
        root="model.vision_model.",
        connector="model.connector.modality_projection.proj",
        patch=encoder.integer("patch_size", 1, side, 32),
        hidden=encoder.integer("hidden_size", 1, 1 << 16, 1152),
        layers=encoder.integer("num_hidden_layers", 1, 1024, 12),
        heads=encoder.integer("num_attention_heads", 1, 1024, 16),
        ffn=encoder.integer("intermediate_size", 1, 1 << 20, 3072),
        epsilon=encoder.number("layer_norm_eps", 1e-12, 1.0, 1e-6),
        activation=vision_network.activation(encoder),
        shuffle=shuffle,
        mean=vision_network.colours(processor, "image_mean"),
        std=vision_network.colours(processor, "image_std", 1e-6),
    )
    return vision_network.with_tokens(network)


def read_gemma3(files: vision_network.VisionFiles) -> vision_network.VisionNetwork:
    """An image is one tile, whatever its shape (no pan and scan, as by default in transformers). SigLIP, means of
    squares of patches, a norm and one matrix (transformers `Gemma3ForConditionalGeneration`, `Gemma3Processor`)."""
    config, encoder, processor = files.fields()
    side = encoder.integer("image_size", 1, 4096, 224)
    patch = encoder.integer("patch_size", 1, side, 16)
    if processor.raw("do_pan_and_scan") not in (None, False):
        raise UnsupportedModel("preprocessor_config.json: do_pan_and_scan is not supported")
    vision_network.check_square(processor, side)
    # Files of the text model alone may lack the token, whose own row nothing reads.
    pad = PAD if files.token_id(PAD) is not None else UNUSED
    network = vision_network.VisionNetwork(
        spec=VisionSpec(
            file=vision_network.VISION_FILE,
            cutting=Cutting.WHOLE,
            side=side,
            tokens=1,
            token=vision_network.token(files, pad),
            placeholder="<start_of_image>",
            pad=pad,
            resampling=vision_network.resampling(processor, BILINEAR),
            opening="\n\n<start_of_image>",
            closing="<end_of_image>\n\n",
            both_ways=True,
        ),
        root="vision_tower.vision_model.",
        newer_root="vision_tower.",
        connector="multi_modal_projector.mm_",
        patch=patch,
        hidden=encoder.integer("hidden_size", 1, 1 << 16, 768),
        layers=encoder.integer("num_hidden_layers", 1, 1024, 12),
        heads=encoder.integer("num_attention_heads", 1, 1024, 12),
        ffn=encoder.integer("intermediate_size", 1, 1 << 20, 3072),
        epsilon=encoder.number("layer_norm_eps", 1e-12, 1.0, 1e-6),
        activation=vision_network.activation(encoder),
        shuffle=_pooled(config, side // patch),
        mean=vision_network.colours(processor, "image_mean"),
        std=vision_network.colours(processor, "image_std", 1e-6),
        form=vision_network.TileForm.POOLED,
    )
    return vision_network.with_tokens(network)


def read_internvl(files: vision_network.VisionFiles) -> vision_network.VisionNetwork:
    """Tiles of the grid whose proportions are nearest, with a class token, pixels shuffled into depth, two matrices.
    Transformers `InternVLForConditionalGeneration`, `InternVLProcessor`, `GotOcr2ImageProcessor`."""
    config, encoder, processor = files.fields()
    _refuse_other_forms(config, encoder)
    side = _side(encoder, "image_size", 448)
    vision_network.check_square(processor, side)
    network = vision_network.VisionNetwork(
        spec=VisionSpec(
            file=vision_network.VISION_FILE,
            cutting=Cutting.CANVAS,
            side=side,
            tokens=1,
            token=vision_network.token(files, INTERNVL_PAD),
            placeholder=INTERNVL_PAD,
            pad=INTERNVL_PAD,
            resampling=vision_network.resampling(processor, BICUBIC),
            opening="<img>",
            closing="</img>",
            most_tiles=processor.integer("max_patches", 1, 256, MOST_TILES),
        ),
        root="vision_tower.",
        connector="multi_modal_projector.",
        patch=_side(encoder, "patch_size", 14),
        hidden=encoder.integer("hidden_size", 1, 1 << 16, 1024),
        layers=encoder.integer("num_hidden_layers", 1, 1024, 24),
        heads=encoder.integer("num_attention_heads", 1, 1024, 16),
        ffn=encoder.integer("intermediate_size", 1, 1 << 20, 4096),
        epsilon=encoder.number("layer_norm_eps", 1e-12, 1.0, 1e-6),
        activation=vision_network.activation(encoder, "gelu"),
        shuffle=round(1 / config.number("downsample_ratio", 1 / 64, 1.0, 0.5)),
        mean=vision_network.colours(processor, "image_mean", default=vision_network.CLIP_MEAN),
        std=vision_network.colours(processor, "image_std", 1e-6, vision_network.CLIP_STD),
        form=vision_network.TileForm.CLASS_TOKEN,
    )
    return vision_network.with_tokens(network)


def _refuse_other_forms(config: ConfigFields, encoder: ConfigFields) -> None:
    wanted = {
        "norm_type": (encoder, "layer_norm"),
        "use_qk_norm": (encoder, False),
        "use_mean_pooling": (encoder, True),
        "use_absolute_position_embeddings": (encoder, True),
        "vision_feature_layer": (config, -1),
        "vision_feature_select_strategy": (config, "default"),
        "projector_hidden_act": (config, "gelu"),
    }
    for name, (fields, value) in wanted.items():
        if fields.raw(name) not in (None, value):
            raise UnsupportedModel(f"config.json: {name} {brief(fields.raw(name))} is not supported, only {value} is")


def _side(encoder: ConfigFields, name: str, default: int) -> int:
    """A number, or a list of two equal ones."""
    value = encoder.raw(name)
    if not isinstance(value, list):
        return encoder.integer(name, 1, 4096, default)
    height, width = encoder.numbers(name, 2, 1, 4096)
    if height != width or not height.is_integer():
        raise UnsupportedModel(f"vision_config: {name} {brief(value)} is not supported, only squares are")
    return int(height)


def _internvl_details(config: ConfigFields) -> FamilyDetails:
    kind = config.text("model_type", QWEN2.name)
    if kind not in INTERNVL_TEXTS:
        known = ", ".join(INTERNVL_TEXTS)
        raise UnsupportedModel(f"text_config: model_type {brief(kind)} is not supported (supported: {known})")
    return INTERNVL_TEXTS[kind].read_details(config)


INTERNVL = Family(
    "internvl",
    "InternVLForConditionalGeneration",
    _internvl_details,
    is_tied=True,
    text_group="text_config",
    text_root="language_model.model.",
)


def _pooled(config: ConfigFields, grid: int) -> int:
    """Patches of a side that become one row, of `grid` patches of a tile's side."""
    tokens = config.integer("mm_tokens_per_image", 1, 1 << 16, 256)
    rows = isqrt(tokens)
    if rows * rows != tokens or rows > grid or grid % rows:
        raise CompileError(
            f"config.json: mm_tokens_per_image is {tokens}, which makes no whole squares of {grid} x {grid} patches"
        )
    return grid // rows


# Qwen3.5 and 3.6, Gemma 3: checkpoints of the same class come without the encoder, too.
_QWEN3_5 = (QWEN3_5_NESTED.architecture, QWEN3_5_MOE_NESTED.architecture)
MAY_BE_BLIND = (*_QWEN3_5, GEMMA3_NESTED.architecture)
READERS: dict[str, Callable[[vision_network.VisionFiles], vision_network.Encoder]] = {
    "Idefics3ForConditionalGeneration": _read_idefics3,
    "SmolVLMForConditionalGeneration": _read_idefics3,
    INTERNVL.architecture: read_internvl,
    QWEN2_5_VL.architecture: read_qwen2_5_vl,
    QWEN3_VL.architecture: read_qwen3_vl,
    GEMMA3_NESTED.architecture: read_gemma3,
    **dict.fromkeys(_QWEN3_5, read_qwen3_vl),
}


IDEFICS3 = replace(
    LLAMA,
    name="idefics3",
    architecture="Idefics3ForConditionalGeneration",
    text_group="text_config",
    text_root="model.text_model.",
)
SMOLVLM = replace(IDEFICS3, name="smolvlm", architecture="SmolVLMForConditionalGeneration")
VISION = (IDEFICS3, SMOLVLM, INTERNVL, QWEN2_5_VL, QWEN3_VL)
