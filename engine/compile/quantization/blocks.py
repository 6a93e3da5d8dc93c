"""Blocks as `MatMulNBits` reads them, wherever their codes come from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


INT4_MIDDLE, INT8_MIDDLE = 8, 128


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


@dataclass(frozen=True, slots=True)
class Int8Blocks:
    """Eight bits a weight: codes [outputs, blocks, block] around 128; scales [outputs, blocks]."""

    codes: Bytes
    scales: Float32

    def scaled(self, factors: Float32) -> "Int8Blocks":
        """Rows multiplied by their factors [outputs, 1]."""
        return Int8Blocks(self.codes, self.scales * factors)

    def floats(self) -> Float32:
        """The weights [outputs, blocks * block] that codes and scales stand for."""
        values = self.codes.astype(np.float32)
        values -= np.float32(INT8_MIDDLE)
        values *= self.scales[:, :, None]
        return values.reshape(len(values), -1)


Blocks = Int4Blocks | Int8Blocks


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two 4-bit codes of the last axis in one byte, the first in the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: Bytes) -> Bytes:
    """The inverse of `pack_nibbles`."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
