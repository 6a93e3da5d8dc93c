"""Blocks as `MatMulNBits` reads them, wherever their codes come from."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Floats = NDArray[np.floating[Any]]
Places = slice | NDArray[np.int64]
INT4_MIDDLE, INT8_MIDDLE, INT8_LIMIT = 8, 128, 127
KEPT_BLOCK = 32  # weights of a block in GGUF files


@dataclass(frozen=True, slots=True)
class BlockForm:
    """What all blocks of a matrix have in common. block: inputs that share a scale. order: int64 as bytes: which input
    each place of a row belongs to, b"" = inputs stand in their own order. is_coarse: rounding the file's
    codes once more loses little. is_rotated: runs of each row are (`hadamard.py`), so inputs have to be."""

    bits: int
    block: int = KEPT_BLOCK
    has_zero_points: bool = False
    order: bytes = b""
    is_coarse: bool = False
    is_rotated: bool = False

    def places(self) -> NDArray[np.int64] | None:
        return np.frombuffer(self.order, np.int64) if self.order else None


@dataclass(frozen=True, slots=True)
class Blocks:
    """(code - zero point) * scale + offset, rows of a matrix in blocks that share these. codes [outputs, blocks,
    block], a code in each byte; scales, zero_points, offsets [outputs, blocks]. zero_points: None = the middle of the
    codes. offsets: None = nothing is added."""

    bits: int
    codes: Bytes
    scales: Float32
    zero_points: Bytes | None = None
    offsets: Float32 | None = None

    @property
    def block(self) -> int:
        return int(self.codes.shape[2])

    @property
    def middle(self) -> int:
        """The code that stands for 0 without a zero point."""
        return 1 << (self.bits - 1)

    def points(self) -> Bytes:
        """The zero point of every block [outputs, blocks]."""
        return np.full(self.scales.shape, self.middle, np.uint8) if self.zero_points is None else self.zero_points

    def scaled(self, factors: Float32) -> "Blocks":
        """Rows multiplied by their factors [outputs, 1]."""
        offsets = None if self.offsets is None else self.offsets * factors
        return replace(self, scales=self.scales * factors, offsets=offsets)

    def picked(self, places: tuple[Places, ...]) -> "Blocks":
        """Some outputs, and perhaps some blocks of them, in this order."""
        arrays: tuple[Any, ...] = (self.codes, self.scales, self.zero_points, self.offsets)
        picked: list[Any] = [None if values is None else values[places] for values in arrays]
        return Blocks(self.bits, *picked)

    def spread(self, block: int, inputs: int) -> "Blocks":
        """The same weights in smaller blocks, whose size divides ours."""
        share, count = self.block // block, -(-inputs // block)
        codes = self.codes.reshape(len(self.codes), -1, block)[:, :count]
        return replace(self.picked((slice(None), np.arange(count) // share)), codes=codes)

    def with_offsets(self) -> "Blocks":
        """The same weights with offsets instead of zero points."""
        if self.zero_points is None:
            return self
        return replace(self, zero_points=None, offsets=(np.float32(self.middle) - self.zero_points) * self.scales)

    def floats(self) -> Float32:
        """The weights [outputs, blocks * block] that codes and scales stand for."""
        values = self.codes.astype(np.float32)
        values -= np.float32(self.middle) if self.zero_points is None else self.zero_points[:, :, None]
        values *= self.scales[:, :, None]
        if self.offsets is not None:
            values += self.offsets[:, :, None]
        return values.reshape(len(values), -1)

    def stored(self) -> Bytes:
        """Codes as the operator reads them: two of 4 bits in a byte."""
        return self.codes if self.bits == 8 else pack_nibbles(self.codes)

    def stored_points(self) -> Bytes | None:
        """Zero points as the operator reads them: packed like codes, the last of an odd number beside the middle."""
        points = self.zero_points
        if points is None or self.bits == 8:
            return points
        return pack_nibbles(np.pad(points, ((0, 0), (0, points.shape[1] % 2)), constant_values=INT4_MIDDLE))


def floats_of(piece: Float32 | Blocks, inputs: int) -> Float32:
    """A run of rows [some, inputs] as the floats that it stands for."""
    return piece.floats()[:, :inputs] if isinstance(piece, Blocks) else piece


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two 4-bit codes of the last axis in one byte, the first in the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: Bytes) -> Bytes:
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
