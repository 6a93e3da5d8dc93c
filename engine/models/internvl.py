"""InternVL 3 and 3.5: Qwen2 or Qwen3 beside an encoder of square tiles, with a class token.

Definitions: transformers `InternVLForConditionalGeneration`, `InternVLProcessor`, `GotOcr2ImageProcessor`.
"""

from engine.bundle.vision import Cutting, VisionSpec
from engine.errors import UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import QWEN2, QWEN3
from engine.models.network import Family, FamilyDetails
from engine.models.vision_network import (
    CLIP_MEAN,
    CLIP_STD,
    VISION_FILE,
    TileForm,
    VisionFiles,
    VisionNetwork,
    activation,
    check_square,
    colours,
    resampling,
    token,
    with_tokens,
)

PAD = "<IMG_CONTEXT>"
TEXTS = {QWEN2.name: QWEN2, QWEN3.name: QWEN3}
BICUBIC, MOST_TILES = 3, 12


def read_internvl(files: VisionFiles) -> VisionNetwork:
    """Tiles of the grid whose proportions are nearest, pixels shuffled into depth, two matrices."""
    config, encoder, processor = files.fields()
    _refuse(config, encoder)
    side = _side(encoder, "image_size", 448)
    check_square(processor, side)
    network = VisionNetwork(
        spec=VisionSpec(
            file=VISION_FILE,
            cutting=Cutting.CANVAS,
            side=side,
            tokens=1,
            token=token(files, PAD),
            placeholder=PAD,
            pad=PAD,
            resampling=resampling(processor, BICUBIC),
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
        activation=activation(encoder, "gelu"),
        shuffle=round(1 / config.number("downsample_ratio", 1 / 64, 1.0, 0.5)),
        mean=colours(processor, "image_mean", default=CLIP_MEAN),
        std=colours(processor, "image_std", 1e-6, CLIP_STD),
        form=TileForm.CLASS_TOKEN,
    )
    return with_tokens(network)


def _refuse(config: ConfigFields, encoder: ConfigFields) -> None:
    """UnsupportedModel names what is not implemented."""
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


def _details(config: ConfigFields) -> FamilyDetails:
    kind = config.text("model_type", QWEN2.name)
    if kind not in TEXTS:
        raise UnsupportedModel(
            f"text_config: model_type {brief(kind)} is not supported (supported: {', '.join(TEXTS)})"
        )
    return TEXTS[kind].read_details(config)


INTERNVL = Family(
    "internvl",
    "InternVLForConditionalGeneration",
    _details,
    is_tied=True,
    text_group="text_config",
    text_root="language_model.model.",
)
