"""Four-bit blocks as the block operator reads them, wherever their codes come from."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Int4Blocks:
    """`MatMulNBits` layout: packed [outputs, blocks, block / 2], low nibble first; scales [outputs, blocks];
    zero_points [outputs, ceil(blocks / 2)] packed alike, None when every zero point is 8."""

    packed: Bytes
    scales: Float32
    zero_points: Bytes | None


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two 4-bit codes of the last axis in one byte, the first in the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: Bytes) -> Bytes:
    """The inverse of `pack_nibbles`."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)
