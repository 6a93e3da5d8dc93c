"""Float matrices to integers and scales, vectorised. Layouts are those of onnxruntime's contrib operators.

Matrices come as the checkpoint has them: [outputs, inputs] float32.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Bytes = NDArray[np.uint8]
SignedBytes = NDArray[np.int8]

# x86 without VNNI adds two u8*s8 products in 16 bits and saturates: 255 * 64 * 2 fits, 255 * 127 * 2 does not.
# Seven bits keep the sums exact on every machine, so a bundle gives the same numbers everywhere.
INT8_LIMIT = 64
INT4_MIDDLE = 8


@dataclass(frozen=True, slots=True)
class Int4Blocks:
    """`MatMulNBits` layout: packed [outputs, blocks, block / 2], low nibble first; scales [outputs, blocks];
    zero_points [outputs, ceil(blocks / 2)] packed alike, None when every zero point is 8."""

    packed: Bytes
    scales: Float32
    zero_points: Bytes | None


def int8_columns(weight: Float32) -> tuple[SignedBytes, Float32]:
    """One symmetric scale for each output: integers [inputs, outputs] in +-64 and scales [outputs]."""
    peaks = np.maximum(weight.max(axis=1), -weight.min(axis=1))
    scales = _no_zeros(peaks / np.float32(INT8_LIMIT))
    integers = np.rint(weight * (np.float32(1.0) / scales)[:, None]).astype(np.int8)
    return np.ascontiguousarray(integers.T), scales


def int8_rows(table: Float32) -> tuple[SignedBytes, Float32]:
    """One symmetric scale for each row of a table: integers [rows, width] in +-127 and scales [rows, 1]."""
    peaks = np.maximum(table.max(axis=1, keepdims=True), -table.min(axis=1, keepdims=True))
    scales = _no_zeros(peaks / np.float32(127))
    return np.rint(table / scales).astype(np.int8), scales


def int4_blocks(weight: Float32, block: int, asymmetric: bool) -> Int4Blocks:
    """Blocks of `block` inputs share a scale; a last block that is not full is padded with zeros."""
    outputs, inputs = weight.shape
    if inputs % block:
        weight = np.pad(weight, ((0, 0), (0, -inputs % block)))
    blocks = weight.reshape(outputs, -1, block)
    high, low = blocks.max(axis=2), blocks.min(axis=2)
    if asymmetric:
        return _asymmetric(blocks, high, low)
    # The larger side is put on -8, the end of the range that has one step more.
    extreme = np.where(high > -low, high, low)
    scales = _no_zeros(extreme / np.float32(-INT4_MIDDLE))
    codes = _codes(blocks, scales, np.float32(INT4_MIDDLE))
    return Int4Blocks(pack_nibbles(codes), scales, None)


def _asymmetric(blocks: Float32, high: Float32, low: Float32) -> Int4Blocks:
    high, low = np.maximum(high, 0), np.minimum(low, 0)
    scales = _no_zeros((high - low) / np.float32(15))
    zero_points = np.clip(np.rint(-low / scales), 0, 15)
    codes = _codes(blocks, scales, zero_points[:, :, None])
    codes_of_zero = zero_points.astype(np.uint8)
    if codes_of_zero.shape[1] % 2:
        codes_of_zero = np.pad(codes_of_zero, ((0, 0), (0, 1)), constant_values=INT4_MIDDLE)
    return Int4Blocks(pack_nibbles(codes), scales, pack_nibbles(codes_of_zero))


def _codes(blocks: Float32, scales: Float32, middle: Float32 | np.float32) -> Bytes:
    scaled = blocks * (np.float32(1.0) / scales)[:, :, None]
    scaled += middle + np.float32(0.5)  # truncation of a positive number then rounds
    np.clip(scaled, 0, 15.5, out=scaled)
    return scaled.astype(np.uint8)


def pack_nibbles(codes: Bytes) -> Bytes:
    """Two 4-bit codes of the last axis in one byte, the first in the low half."""
    return codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))


def unpack_nibbles(packed: Bytes) -> Bytes:
    """The inverse of `pack_nibbles`."""
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:-1], -1)


def _no_zeros(scales: Float32) -> Float32:
    """A scale of 0 (a block of zeros) would make NaN; any other value keeps the block at zero."""
    return np.where(scales == 0, np.float32(1.0), scales).astype(np.float32)
