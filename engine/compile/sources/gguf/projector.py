"""The file beside a GGUF model that reads images for it (mmproj): its facts as a checkpoint's files tell them.

Format: llama.cpp's converter, whose files say `general.architecture` "clip".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.compile.sources.gguf.architectures import ARCHITECTURE
from engine.compile.sources.gguf.geometry import ArchitectureFields
from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import UnsupportedModel
from engine.files import brief

CLIP = "clip"
Facts = dict[str, object]
_WINDOW = 112  # pixels of Qwen2.5-VL's windows, which files do not say


@dataclass(frozen=True, slots=True)
class ProjectorForm:
    """One value of `projector_type`.

    classes: of the whole model, by the architecture of the GGUF file that it belongs to. root, head: how they begin the
    names of the text model's tensors and of its head. config(fields): what config.json says beside the text model.
    processor(fields): what preprocessor_config.json says. beginnings: of names, where files have others than the `gguf`
    package's table says. raised: tensors that files hold plus one.
    """

    classes: Mapping[str, str]
    root: str
    head: str
    config: Callable[[ArchitectureFields], Facts]
    processor: Callable[[ArchitectureFields], Facts]
    beginnings: Mapping[str, str] = field(default_factory=dict)
    raised: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Projector:
    """A file and what it says."""

    header: GgufHeader
    form: ProjectorForm

    @property
    def fields(self) -> ArchitectureFields:
        return ArchitectureFields(self.header, CLIP)

    def config(self, text: str) -> Facts:
        """As config.json of the whole model says beside its text model, which is of that architecture. CompileError for
        missing metadata."""
        return {"architectures": [self.form.classes[text]], **self.form.config(self.fields)}

    def processor(self) -> Facts:
        """As preprocessor_config.json says."""
        return self.form.processor(self.fields)


def projector_of(header: GgufHeader) -> Projector:
    """A file that reads images. UnsupportedModel by the name of its kind."""
    fields, known = ArchitectureFields(header, CLIP), ", ".join(FORMS)
    kind = fields.text("projector_type", fields.text("vision.projector_type", ""))
    if header.metadata.get(ARCHITECTURE) != CLIP or kind not in FORMS:
        raise UnsupportedModel(f"{fields.title}: projector_type {brief(kind)} is not supported (supported: {known})")
    return Projector(header, FORMS[kind])


def fits(projector: Projector, text: GgufHeader) -> bool:
    """Whether its rows are as wide as those of a text model of an architecture that it belongs to."""
    name = text.metadata.get(ARCHITECTURE)
    if name not in projector.form.classes:
        return False
    width = ArchitectureFields(text, str(name)).integer("embedding_length", 1, 1 << 16)
    return projector.fields.integer("vision.projection_dim", 1, 1 << 20, width) == width


def _sizes(fields: ArchitectureFields) -> dict[str, int]:
    """What all kinds say of their encoder."""
    return {
        "patch_size": fields.integer("vision.patch_size", 1, 4096),
        "hidden_size": fields.integer("vision.embedding_length", 1, 1 << 16),
        "intermediate_size": fields.integer("vision.feed_forward_length", 1, 1 << 20),
    }


def layer_count(fields: ArchitectureFields) -> int:
    return fields.integer("vision.block_count", 1, 1024)


def _colours(fields: ArchitectureFields) -> Facts:
    return {name: list(fields.numbers(f"vision.{name}", 3, 0.0, 1.0)) for name in ("image_mean", "image_std")}


def _tower(fields: ArchitectureFields, activation: str) -> Facts:
    """Of square tiles, in the words of transformers."""
    return {
        **_sizes(fields),
        "image_size": _side(fields),
        "num_hidden_layers": layer_count(fields),
        "num_attention_heads": fields.integer("vision.attention.head_count", 1, 1024),
        "layer_norm_eps": fields.number("vision.attention.layer_norm_epsilon", 1e-14, 1.0),
        "hidden_act": activation,
    }


def _scale(fields: ArchitectureFields, usual: int = 2) -> int:
    """Patches of a side that become one row."""
    return fields.integer("vision.projector.scale_factor", 1, 64, usual)


def _side(fields: ArchitectureFields) -> int:
    return fields.integer("vision.image_size", 1, 4096)


def _gemma3_config(fields: ArchitectureFields) -> Facts:
    rows = _side(fields) // fields.integer("vision.patch_size", 1, 4096) // _scale(fields, 4)
    return {"vision_config": _tower(fields, "gelu_pytorch_tanh"), "mm_tokens_per_image": rows * rows}


def _square_processor(fields: ArchitectureFields) -> Facts:
    return {**_colours(fields), "size": {"height": _side(fields), "width": _side(fields)}}


def _idefics3_config(fields: ArchitectureFields) -> Facts:
    return {"vision_config": _tower(fields, "gelu_pytorch_tanh"), "scale_factor": _scale(fields)}


def _idefics3_processor(fields: ArchitectureFields) -> Facts:
    whole = fields.integer("vision.preproc_image_size", 1, 1 << 14, 4 * _side(fields))
    sizes = {"max_image_size": {"longest_edge": _side(fields)}, "size": {"longest_edge": whole}}
    return {**_colours(fields), **sizes}


def _internvl_config(fields: ArchitectureFields) -> Facts:
    if fields.flag("use_silu", False):
        raise UnsupportedModel(f"{fields.title}: {CLIP}.use_silu is not supported for this projector")
    return {"vision_config": _tower(fields, "gelu"), "downsample_ratio": 1 / _scale(fields)}


def _internvl_processor(fields: ArchitectureFields) -> Facts:
    return _square_processor(fields) | {"max_patches": fields.integer("vision.preproc_max_tiles", 1, 256, 12)}


def _qwen_encoder(fields: ArchitectureFields) -> Facts:
    return {
        **_sizes(fields),
        "depth": layer_count(fields),
        "num_heads": fields.integer("vision.attention.head_count", 1, 1024),
        "spatial_merge_size": fields.integer("vision.spatial_merge_size", 1, 16, 2),
    }


def _qwen2_5_config(fields: ArchitectureFields) -> Facts:
    every = fields.integer("vision.n_wa_pattern", 1, 1024)
    whole = [layer for layer in range(layer_count(fields)) if (layer + 1) % every == 0]
    windows = {"fullatt_block_indexes": whole, "window_size": _WINDOW, "hidden_act": "silu"}
    return {"vision_config": _qwen_encoder(fields) | windows}


def _qwen3_config(fields: ArchitectureFields) -> Facts:
    side = fields.integer("vision.image_size", 1, 1 << 16) // fields.integer("vision.patch_size", 1, 4096)
    more = {"num_position_embeddings": side * side, "deepstack_visual_indexes": list(deep_layers(fields))}
    return {"vision_config": _qwen_encoder(fields) | more | {"hidden_act": "gelu_pytorch_tanh"}}


def deep_layers(fields: ArchitectureFields) -> tuple[int, ...]:
    """Layers whose rows go to the first layers of the text."""
    flags = fields.flags("vision.is_deepstack_layers", layer_count(fields)) or ()
    return tuple(layer for layer, flag in enumerate(flags) if flag)


def _qwen_processor(least: int, most: int) -> Callable[[ArchitectureFields], Facts]:
    """least, most: pixels of an image where a file does not say: those that the models were published with."""

    def processor(fields: ArchitectureFields) -> Facts:
        usual = {"min": least, "max": most}
        found = {f"{end}_pixels": fields.integer(f"vision.image_{end}_pixels", 1, 1 << 32, usual[end]) for end in usual}
        return {**_colours(fields), **found}

    return processor


_GEMMA3_NORM = "multi_modal_projector.mm_soft_emb_norm.weight"


def _classes(name: str, *texts: str) -> dict[str, str]:
    return dict.fromkeys(texts, f"{name}ForConditionalGeneration")


_QWEN3 = _classes("Qwen3VL", "qwen3vl") | _classes("Qwen3_5", "qwen35") | _classes("Qwen3_5Moe", "qwen35moe")
FORMS = {
    "idefics3": ProjectorForm(
        _classes("SmolVLM", "llama"), "model.text_model.", "lm_head", _idefics3_config, _idefics3_processor
    ),
    "gemma3": ProjectorForm(
        _classes("Gemma3", "gemma3"),
        "language_model.model.",
        "language_model.lm_head",
        _gemma3_config,
        _square_processor,
        {"multi_modal_projector.mm_input_projection_weight": "mm.input_projection.weight"},
        (_GEMMA3_NORM,),
    ),
    "internvl": ProjectorForm(
        _classes("InternVL", "qwen2", "qwen3"),
        "language_model.model.",
        "language_model.lm_head",
        _internvl_config,
        _internvl_processor,
        {
            "multi_modal_projector.layer_norm": "mm.model.mlp.0",
            "multi_modal_projector.linear_1": "mm.model.mlp.1",
            "multi_modal_projector.linear_2": "mm.model.mlp.3",
        },
    ),
    "qwen2.5vl_merger": ProjectorForm(
        _classes("Qwen2_5_VL", "qwen2vl"),
        "model.",
        "lm_head",
        _qwen2_5_config,
        _qwen_processor(56 * 56, 12_845_056),
        {"visual.merger.mlp.2": "mm.2"},
    ),
    "qwen3vl_merger": ProjectorForm(
        _QWEN3,
        "model.language_model.",
        "lm_head",
        _qwen3_config,
        _qwen_processor(65_536, 16_777_216),
        {
            "model.visual.merger.norm": "v.post_ln",
            "model.visual.merger.linear_fc1": "mm.0",
            "model.visual.merger.linear_fc2": "mm.2",
        },
    ),
}
