"""A matrix of codes, whatever file it comes from: as blocks that `MatMulNBits` holds, and as floats."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import KEPT_BLOCK, BlockForm, Blocks, Bytes
from engine.compile.sources.checkpoint import Float32

LEAST_BLOCK = 16  # of the operator
LARGEST_BLOCKS = {4: 128, 8: KEPT_BLOCK}  # by bits: 8 are for little loss, and small blocks round activations less


class Integers(NamedTuple):
    """Rows of a matrix: codes [rows, inputs]; scales and zero points [rows, groups]. points: None = the middle."""

    codes: Bytes
    scales: Float32
    points: Bytes | None


@dataclass(frozen=True)
class IntegerMatrix:
    """(code - zero point) * scale. read(start, stop): rows. names: of the tensors. group: inputs that share a scale.

    Rows of a stack of matrices are whole matrices: `read` gives the rows of those, one behind the other.

    groups: [inputs], the group of each input where they do not follow each other. has_points: any differs from the
    middle.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    bits: int
    group: int
    has_points: bool
    read: Callable[[int, int], Integers]
    groups: NDArray[np.int64] | None = None

    @cached_property
    def form(self) -> BlockForm | None:
        """None where the operator cannot hold the groups: they are too small, or of several sizes."""
        block = self._block
        if block < LEAST_BLOCK:
            return None
        regular = np.arange(self.shape[-1]) // self.group
        if self.groups is None or np.array_equal(self.groups, regular):
            return BlockForm(self.bits, block, self.has_points)
        order = np.argsort(self.groups, kind="stable")
        if not np.array_equal(self.groups[order], regular):
            return None
        return BlockForm(self.bits, block, self.has_points, order.astype(np.int64).tobytes())

    def blocks(self, start: int, stop: int) -> Blocks | None:
        """Rows in the order of inputs that `form` tells."""
        form, rows = self.form, self.read(start, stop)
        if form is None:
            return None
        places, block = form.places(), form.block
        codes = rows.codes if places is None else rows.codes[:, places]
        inputs = self.shape[-1]
        count = -(-inputs // block)
        share = count if self.group >= inputs else self.group // block
        codes = np.pad(codes, ((0, 0), (0, count * block - inputs))).reshape(len(codes), count, block)
        scales = np.repeat(rows.scales, share, axis=1)[:, :count]
        points = None
        if form.has_zero_points and rows.points is not None:
            points = np.repeat(rows.points, share, axis=1)[:, :count]
        return Blocks(self.bits, codes, scales, points)

    def floats(self, start: int, stop: int) -> Float32:
        """Rows in the inputs' own order."""
        rows = self.read(start, stop)
        groups = np.arange(self.shape[-1]) // self.group if self.groups is None else self.groups
        values = rows.codes.astype(np.float32)
        values -= np.float32(1 << (self.bits - 1)) if rows.points is None else rows.points[:, groups]
        values *= rows.scales[:, groups]
        return values

    @property
    def _block(self) -> int:
        """The largest power of two that divides a group."""
        largest = LARGEST_BLOCKS[self.bits]
        return largest if self.group >= self.shape[-1] else min(largest, self.group & -self.group)


@dataclass(frozen=True, slots=True)
class FloatCodes:
    """Codes that are no integers: only the floats they stand for can be read. floats(start, stop): rows."""

    names: tuple[str, ...]
    shape: tuple[int, int]
    floats: Callable[[int, int], Float32]
    form: None = None

    def blocks(self, start: int, stop: int) -> None:
        """There are none."""


StoredMatrix = IntegerMatrix | FloatCodes
