"""The file beside a GGUF model that reads images for it (mmproj): its facts as a checkpoint's files tell them, and both
files as the checkpoint of one model.

Format: llama.cpp's converter, whose files say `general.architecture` "clip".
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

import numpy as np

from engine.compile.sources.checkpoint import Checkpoint, CheckpointView, Float32
from engine.compile.sources.gguf.architectures import ARCHITECTURE, GgufArchitecture
from engine.compile.sources.gguf.geometry import ArchitectureFields, GgufGeometry
from engine.compile.sources.gguf.header import GgufHeader, read_header
from engine.compile.sources.gguf.tensors import TensorNames, gguf_tensors
from engine.errors import UnsupportedModel
from engine.files import PROJECTOR, brief, projectors_beside

CLIP = "clip"
Facts = dict[str, object]
_WINDOW = 112  # pixels of Qwen2.5-VL's windows, which files do not say


@dataclass(frozen=True, slots=True)
class ProjectorForm:
    """One value of `projector_type`. classes: of the whole model, by the architecture of the GGUF file that it belongs
    to. root, head: how they begin the names of the text model's tensors and of its head. config(fields): what
    config.json says beside the text model. processor(fields): what preprocessor_config.json says. beginnings: of names,
    where files have others than the `gguf` package's table says. raised: tensors that files hold plus one."""

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


TEXT = "model."
HEAD = "lm_head"
CONVOLUTION_OF_FRAMES = 5  # axes of the weight of patches of several frames
_BETWEEN_WORDS = re.compile(r"[-_.]")
_OF_TYPES = re.compile(rf"{PROJECTOR}|i?q\d\w*|b?fp?(?:16|32)|[klmsx]{{1,2}}|\d")
CLIP_NAMES = GgufArchitecture(CLIP, "")
_STACKED, _SIDES = "attn_qkv", ("attn_q", "attn_k", "attn_v")
_DEEP = re.compile(r"(deepstack_merger_list\.)(\d+)\.")  # counted here, told by their layers in files
_UP_OR_DOWN = re.compile("ffn_up|ffn_down")


def projector_beside(path: Path, text: GgufHeader) -> tuple[Projector | None, str]:
    """The projector that lies beside a model and fits it; of several the one whose name is nearest, then the largest.
    And why what lies there is not used, "" = nothing is left out. CompileError for a file that cannot be read."""
    found: list[Projector] = []
    remark = ""
    for header in map(read_header, projectors_beside(path)):
        try:
            found.append(projector_of(header))
        except UnsupportedModel as error:
            remark = f"{error}; the model is compiled without it, for text"
    fitting = [each for each in found if fits(each, text)]

    def nearness(projector: Projector) -> tuple[int, int]:
        """How many words the names begin with in common, and the size in bytes."""
        pairs = zip(_words(path), _words(projector.header.path), strict=False)
        return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))), projector.header.path.stat().st_size

    nearest = max(fitting, key=nearness, default=None)
    return nearest, remark if nearest is None else ""


def _words(path: Path) -> list[str]:
    """Of a file's name, without those that tell its type."""
    return [word for word in _BETWEEN_WORDS.split(path.stem.lower()) if word and not _OF_TYPES.fullmatch(word)]


@contextmanager
def tensors_with_images(inner: AbstractContextManager[Checkpoint], projector: Projector) -> Iterator[Checkpoint]:
    """Both while the files are open."""
    with inner as text, gguf_tensors(projector.header, CLIP_NAMES, _geometry_of(projector)) as images:
        yield WithImages(text, images, projector)


def _geometry_of(projector: Projector) -> GgufGeometry:
    """Nothing in such files is arranged by heads."""
    return GgufGeometry(layer_count(projector.fields), heads=1, head_dim=2)


class WithImages(CheckpointView):
    """The text model's tensors under the names that they have within the larger one, and those of the encoder, which
    are read whole."""

    def __init__(self, text: Checkpoint, images: Checkpoint, projector: Projector) -> None:
        super().__init__(text)
        self._images, self._form, self._deep = images, projector.form, deep_layers(projector.fields)
        self._swaps = _are_swapped(images)
        self._names = TensorNames(projector.header.tensors, CLIP_NAMES, _geometry_of(projector))

    def __contains__(self, name: str) -> bool:
        if self._is_of_text(name):
            return super().__contains__(name)
        return all(part in self._images for part in self._parts(name))

    def total_bytes(self) -> int:
        return self.inner.total_bytes() + self._images.total_bytes()

    def unused(self) -> list[str]:
        """Of both files; those of the projector under the names that they have there."""
        within = {TEXT: self._form.root, HEAD: self._form.head}
        return [*(_renamed(name, within) for name in self.inner.unused()), *self._images.unused()]

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        """A whole tensor; of the projector, what it lies there in put together."""
        if self._is_of_text(name):
            return super().tensor(name, shape)
        found = self._of_images(name, shape)
        return found - np.float32(1) if name in self._form.raised else found

    def _of_images(self, name: str, shape: tuple[int, ...]) -> Float32:
        parts = self._parts(name)
        if len(shape) == CONVOLUTION_OF_FRAMES:
            frames = [self._images.tensor(part, (*shape[:2], *shape[3:])) for part in parts]
            return np.stack(frames, axis=2)
        if len(parts) > 1:
            each = (shape[0] // len(parts), *shape[1:])
            return np.concatenate([self._images.tensor(part, each) for part in parts])
        stored = self._images.shape(parts[0])
        is_same = [size for size in stored if size != 1] == [size for size in shape if size != 1]
        # Converters drop axes of length 1.
        return self._images.tensor(parts[0], stored if is_same else shape).reshape(shape)

    def _parts(self, name: str) -> tuple[str, ...]:
        """What a tensor of the encoder lies in: several where files have queries, keys and values or frames apart."""
        name = _renamed(name, self._form.beginnings)
        name = _DEEP.sub(lambda found: f"{found[1]}{self._deep[int(found[2])]}.", name)
        stored = self._names.stored(name)
        if self._swaps:
            stored = _UP_OR_DOWN.sub(lambda found: "ffn_down" if found[0] == "ffn_up" else "ffn_up", stored)
        if _STACKED in stored and stored not in self._images:
            return tuple(stored.replace(_STACKED, side) for side in _SIDES)
        return (stored, f"{stored}.1") if f"{stored}.1" in self._images else (stored,)

    def _is_of_text(self, name: str) -> bool:
        return name.startswith((self._form.root, self._form.head))

    def stored(self, name: str) -> str:
        """The name of a tensor in the text model's own file."""
        return _renamed(name, {self._form.root: TEXT, self._form.head: HEAD})


def _renamed(name: str, beginnings: Mapping[str, str]) -> str:
    """With another of these beginnings."""
    return next((new + name.removeprefix(old) for old, new in beginnings.items() if name.startswith(old)), name)


def _are_swapped(images: Checkpoint) -> bool:
    """Whether the first matrix of a feed-forward, the one with a bias as long as it is wide, is called the second."""
    names = [f"v.blk.0.{part}.bias" for part in ("ffn_up", "attn_out", "ffn_down")]
    if any(name not in images for name in names):
        return False
    first, attention, second = map(images.shape, names)
    return first == attention != second
