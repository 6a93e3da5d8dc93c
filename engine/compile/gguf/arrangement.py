"""Where and how the converter stores a tensor otherwise than checkpoints have it, and the way back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.bundle.recurrent import RecurrentSpec
from engine.compile.checkpoint import Float32
from engine.compile.gguf.architectures import (
    A_LOG,
    CONVOLUTION,
    DELTA,
    DT_BIAS,
    KEY,
    MIXED,
    NORMS,
    OUTPUT_GATE,
    QUERY,
    RECURRENT_OUTPUT,
    STEPS,
    GgufArchitecture,
)
from engine.compile.gguf.geometry import GgufGeometry
from engine.errors import CompileError

Places = NDArray[np.int64]


class Order(Protocol):
    """An order of rows or columns."""

    def places(self, wanted: Places) -> Places:
        """Where the file has what a checkpoint has at `wanted`."""


@dataclass(frozen=True, slots=True)
class Halves:
    """Row h, half a, j of the checkpoint lies at h, j, a: files of llama turn neighbours. size: rows of a head."""

    size: int

    def places(self, wanted: Places) -> Places:
        """Within each head."""
        inside = wanted % self.size
        return wanted - inside + 2 * (inside % (self.size // 2)) + inside // (self.size // 2)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Value heads: checkpoints have those of one key head side by side, files the first one of every key head first.

    key_heads, repeats: value heads of each. size: rows of a value head. start: where the first value head is.
    """

    key_heads: int
    repeats: int
    size: int
    start: int = 0

    def places(self, wanted: Places) -> Places:
        """What lies before the value heads stays where it is."""
        head, inside = np.divmod(wanted - self.start, self.size)
        group, nth = np.divmod(head, self.repeats)
        moved = self.start + (nth * self.key_heads + group) * self.size + inside
        return np.where(wanted < self.start, wanted, moved)

    def of_blocks(self, block: int) -> "Tiles | None":
        """The order of whole blocks, None when a block holds parts of two heads."""
        return replace(self, size=self.size // block) if self.size % block == 0 and not self.start else None


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What to undo. is_flat: the file lacks the middle axis of length 1.

    restore(tensor, values): values of the checkpoint, for vectors; CompileError begins with `tensor`.
    """

    rows: Order | None = None
    columns: Tiles | None = None
    is_flat: bool = False
    restore: Callable[[str, Float32], Float32] | None = None


AS_STORED = Arrangement()


def arrangements(architecture: GgufArchitecture, geometry: GgufGeometry) -> Mapping[str, Arrangement]:
    """By the names of tensors in checkpoints; those that are not listed are stored as they are."""
    found: dict[str, Arrangement] = {}
    if architecture.is_interleaved:
        turned = Arrangement(rows=Halves(geometry.head_dim))
        found = {f"{module}{suffix}": turned for module in (QUERY, KEY) for suffix in (".weight", ".bias")}
    if geometry.recurrent is not None:
        found = _recurrent(geometry.recurrent)
    return {name.format(layer=layer): each for name, each in found.items() for layer in range(geometry.layers)}


def _recurrent(spec: RecurrentSpec) -> dict[str, Arrangement]:
    """Of gated DeltaNet layers, and of the norms around them."""
    before = 2 * spec.key_width
    has_tiles = spec.value_heads != spec.key_heads
    heads = Tiles(spec.key_heads, spec.value_heads // spec.key_heads, spec.value_dim) if has_tiles else None
    single = replace(heads, size=1) if heads else None
    mixed = replace(heads, start=before) if heads else None
    return {
        **{f"{norm}.weight": Arrangement(restore=_without_one) for norm in NORMS},
        f"{MIXED}.weight": Arrangement(rows=mixed),
        f"{OUTPUT_GATE}.weight": Arrangement(rows=heads),
        **{f"{step}.weight": Arrangement(rows=single) for step in STEPS},
        f"{CONVOLUTION}.weight": Arrangement(rows=mixed, is_flat=True),
        f"{RECURRENT_OUTPUT}.weight": Arrangement(columns=heads),
        f"{DELTA}.{A_LOG}": Arrangement(rows=single, restore=_logarithm),
        f"{DELTA}.{DT_BIAS}": Arrangement(rows=single),
    }


def _without_one(tensor: str, values: Float32) -> Float32:
    """The file has what a norm multiplies with, the checkpoint how much that is more than 1."""
    return values - np.float32(1)


def _logarithm(tensor: str, values: Float32) -> Float32:
    """The file has -exp of it."""
    if not np.all(values < 0):
        raise CompileError(f"{tensor} holds numbers that are not negative")
    return np.log(-values)
