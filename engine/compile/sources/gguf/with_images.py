"""A GGUF model and the file beside it that reads images, as the checkpoint of one model."""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import takewhile
from pathlib import Path

import numpy as np

from engine.compile.sources.checkpoint import Checkpoint, CheckpointView, Float32
from engine.compile.sources.gguf.architectures import GgufArchitecture
from engine.compile.sources.gguf.geometry import GgufGeometry
from engine.compile.sources.gguf.header import GgufHeader, read_header
from engine.compile.sources.gguf.projector import CLIP, Projector, deep_layers, fits, layer_count, projector_of
from engine.compile.sources.gguf.tensors import TensorNames, gguf_tensors
from engine.errors import UnsupportedModel
from engine.files import PROJECTOR, projectors_beside

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
