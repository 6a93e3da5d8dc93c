"""Blocks as `MatMulNBits` reads them, wherever their codes come from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]
INT4_MIDDLE, INT8_MIDDLE = 8, 128
KEPT_BLOCK = 32  # weights of a block in GGUF files


@dataclass(frozen=True, slots=True)
class BlockForm:
    """What all blocks of a matrix have in common. block: inputs that share a scale.

    order: int64 as bytes: which input each place of a row belongs to, b"" = inputs stand in their own order.
    """

    bits: int
    block: int = KEPT_BLOCK
    has_zero_points: bool = False
    order: bytes = b""

    def places(self) -> NDArray[np.int64] | None:
        """The order as an array."""
        return np.frombuffer(self.order, np.int64) if self.order else None


@dataclass(frozen=True, slots=True)
class Int4Blocks:
    """Four bits a weight: packed [outputs, blocks, block / 2], low nibble first; scales [outputs, blocks];
    zero_points [outputs, ceil(blocks / 2)] packed alike, None when every zero point is 8. offsets [outputs, blocks]:
    what is added to every weight of a block, None = nothing."""

    packed: Bytes
    scales: Float32
    zero_points: Bytes | None
    offsets: Float32 | None = None

    @property
    def block(self) -> int:
        """Inputs that share a scale."""
        return 2 * int(self.packed.shape[2])

    def scaled(self, factors: Float32) -> "Int4Blocks":
        """Rows multiplied by their factors [outputs, 1]."""
        offsets = None if self.offsets is None else self.offsets * factors
        return Int4Blocks(self.packed, self.scales * factors, self.zero_points, offsets)

    def points(self) -> Bytes:
        """The zero point of every block [outputs, blocks]."""
        if self.zero_points is None:
            return np.full(self.scales.shape, INT4_MIDDLE, np.uint8)
        return unpack_nibbles(self.zero_points)[:, : self.scales.shape[1]]

    def spread(self, block: int, inputs: int) -> "Int4Blocks":
        """The same weights in smaller blocks, whose size divides ours."""
        share, count = self.block // block, -(-inputs // block)
        packed = self.packed.reshape(len(self.packed), -1, block // 2)[:, :count]
        scales = np.repeat(self.scales, share, axis=1)[:, :count]
        zeros = None if self.zero_points is None else packed_points(np.repeat(self.points(), share, axis=1)[:, :count])
        offsets = None if self.offsets is None else np.repeat(self.offsets, share, axis=1)[:, :count]
        return Int4Blocks(packed, scales, zeros, offsets)

    def with_offsets(self) -> "Int4Blocks":
        """The same weights with offsets instead of zero points."""
        if self.zero_points is None:
            return self
        offsets = (np.float32(INT4_MIDDLE) - self.points()) * self.scales
        return Int4Blocks(self.packed, self.scales, None, offsets)

    def floats(self) -> Float32:
        """The weights [outputs, blocks * block] that codes and scales stand for."""
        codes = unpack_nibbles(self.packed).astype(np.float32)
        codes -= np.float32(INT4_MIDDLE) if self.zero_points is None else self.points()[:, :, None]
        codes *= self.scales[:, :, None]
        if self.offsets is not None:
            codes += self.offsets[:, :, None]
        return codes.reshape(len(codes), -1)


@dataclass(frozen=True, slots=True)
class Int8Blocks:
    """Eight bits a weight: codes [outputs, blocks, block]; scales [outputs, blocks]; zero_points alike, None when
    every zero point is 128."""

    codes: Bytes
    scales: Float32
    zero_points: Bytes | None = None

    @property
    def block(self) -> int:
        """Inputs that share a scale."""
        return int(self.codes.shape[2])

    @property
    def packed(self) -> Bytes:
        """The bytes as they are stored."""
        return self.codes

    @property
    def offsets(self) -> None:
        """Nothing is added."""
        return

    def scaled(self, factors: Float32) -> "Int8Blocks":
        """Rows multiplied by their factors [outputs, 1]."""
        return Int8Blocks(self.codes, self.scales * factors, self.zero_points)

    def spread(self, block: int, inputs: int) -> "Int8Blocks":
        """The same weights in smaller blocks, whose size divides ours."""
        share, count = self.block // block, -(-inputs // block)
        codes = self.codes.reshape(len(self.codes), -1, block)[:, :count]
        zeros = None if self.zero_points is None else np.repeat(self.zero_points, share, axis=1)[:, :count]
        scales = np.repeat(self.scales, share, axis=1)[:, :count]
        return Int8Blocks(codes, scales, zeros)

    def floats(self) -> Float32:
        """The weights [outputs, blocks * block] that codes and scales stand for."""
        values = self.codes.astype(np.float32)
        values -= np.float32(INT8_MIDDLE) if self.zero_points is None else self.zero_points[:, :, None]
        values *= self.scales[:, :, None]
        return values.reshape(len(values), -1)


Blocks = Int4Blocks | Int8Blocks


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two 4-bit codes of the last axis in one byte, the first in the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: Bytes) -> Bytes:
    """The inverse of `pack_nibbles`."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)


def packed_points(points: Bytes) -> Bytes:
    """Zero points [outputs, blocks] as `Int4Blocks` has them."""
    return pack_nibbles(np.pad(points, ((0, 0), (0, points.shape[1] % 2)), constant_values=INT4_MIDDLE))


def without_zeros(scales: Float32) -> Float32:
    """A scale of 0 (only zeros were seen) would make NaN; any other value keeps them at zero."""
    return np.where(scales == 0, np.float32(1.0), scales).astype(np.float32)
