"""Blocks of a GGUF file in the form that the block operator multiplies: codes are only moved to other places."""

from collections.abc import Callable

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K
from numpy.typing import NDArray

from engine.compile.quantization.blocks import INT4_MIDDLE, INT8_MIDDLE, Blocks, Int4Blocks, Int8Blocks, pack_nibbles

Bytes = NDArray[np.uint8]
Float32 = NDArray[np.float32]
HALF = 2  # bytes of a half-precision number
BLOCK = 32  # weights of a block
SCALES = 12  # bytes of the scales and minima of a block of Q4_K
FLOAT_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
FOUR_BIT = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K)


def kept_blocks(kind: GGMLQuantizationType, content: Bytes) -> Blocks | None:
    """Rows [rows, row bytes] as blocks of 32, None for a type that has none or has them otherwise."""
    read = _READERS.get(kind)
    if read is None:
        return None
    return read(content.reshape(len(content), -1, GGML_QUANT_SIZES[kind][1]))


def is_four_bit(kind: GGMLQuantizationType) -> bool:
    """Whether `kept_blocks` of this type have 4 bits."""
    return kind in FOUR_BIT


def reordered(blocks: Blocks, places: NDArray[np.int64]) -> Blocks:
    """Blocks of each row in another order."""
    if isinstance(blocks, Int8Blocks):
        return Int8Blocks(blocks.codes[:, places], blocks.scales[:, places])
    offsets = None if blocks.offsets is None else blocks.offsets[:, places]
    return Int4Blocks(blocks.packed[:, places], blocks.scales[:, places], None, offsets)


def _q8_0(parts: Bytes) -> Blocks:
    """A scale and 32 numbers in two's complement."""
    return Int8Blocks(parts[:, :, HALF:] ^ np.uint8(INT8_MIDDLE), _halves(parts, 0))


def _q5_0(parts: Bytes) -> Blocks:
    """A scale, the fifth bits of 32 codes around 16, and their lower bits."""
    low = parts[:, :, HALF + 4 :]
    fifth = np.unpackbits(parts[:, :, HALF : HALF + 4], axis=2, bitorder="little") << np.uint8(4)
    codes = np.concatenate([low & np.uint8(15), low >> np.uint8(4)], axis=2) | fifth
    return Int8Blocks(codes + np.uint8(INT8_MIDDLE - 16), _halves(parts, 0))


def _q4_0(parts: Bytes) -> Blocks:
    """A scale and 32 codes around 8."""
    return Int4Blocks(_packed(parts[:, :, HALF:]), _halves(parts, 0), None)


def _q4_1(parts: Bytes) -> Blocks:
    """A scale, the value of code 0, and 32 codes."""
    scales = _halves(parts, 0)
    offsets = _halves(parts, HALF) + scales * np.float32(INT4_MIDDLE)
    return Int4Blocks(_packed(parts[:, :, 2 * HALF :]), scales, None, offsets)


def _q4_k(parts: Bytes) -> Blocks:
    """Eight blocks that share a scale of their scales and one of their minima."""
    rows, count, _ = parts.shape
    codes = parts[:, :, 2 * HALF + SCALES :].reshape(rows, count * 4, 32)
    small, minima = Q4_K.get_scale_min(parts[:, :, 2 * HALF : 2 * HALF + SCALES].reshape(-1, SCALES))
    scales = _halves(parts, 0)[:, :, None] * small.reshape(rows, count, 8).astype(np.float32)
    lowest = _halves(parts, HALF)[:, :, None] * minima.reshape(rows, count, 8).astype(np.float32)
    offsets = scales * np.float32(INT4_MIDDLE) - lowest
    # Here a byte holds codes of two blocks, one in its low and one in its high half.
    apart = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=2).reshape(rows, count * 8, 32)
    return Int4Blocks(pack_nibbles(apart), scales.reshape(rows, -1), None, offsets.reshape(rows, -1))


def _packed(codes: Bytes) -> Bytes:
    """The file has the first half of a block in the low nibbles; the operator wants neighbours in one byte."""
    return pack_nibbles(np.concatenate([codes & np.uint8(15), codes >> np.uint8(4)], axis=2))


def _halves(parts: Bytes, start: int) -> Float32:
    """The half-precision number at one place of every block, as [rows, blocks]."""
    return np.ascontiguousarray(parts[:, :, start : start + HALF]).view("<f2")[:, :, 0].astype(np.float32)


_READERS: dict[GGMLQuantizationType, Callable[[Bytes], Blocks]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q8_0: _q8_0,
}
