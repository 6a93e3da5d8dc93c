"""Weights for integer graphs: symmetric; 8 bits with one scale for each output, 4 bits with one for each block."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Encoding
from engine.compile.qdq.encodings import WIDE_CODES
from engine.errors import CompileError

Float32 = NDArray[np.float32]
SignedBytes = NDArray[np.int8]

INT8_LIMIT = 127
INT4_LIMIT = 7
SCALE_STEPS = 16
TINY = np.float32(1e-30)
# Four bits gain from cutting off a block's largest weight: the share of the peak with the least squared error.
CLIPS = np.linspace(1.05, 0.6, 16, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Columns:
    """Integers [outputs, inputs] of a matrix [outputs, inputs], and scales [outputs] or [outputs, blocks]."""

    integers: SignedBytes
    scales: Float32


def int8_outputs(weight: Float32) -> Columns:
    """The largest weight of each output becomes 127."""
    scales = _scales(np.abs(weight).max(axis=1), INT8_LIMIT)
    return Columns(np.rint(weight / scales[:, None]).astype(np.int8), scales)


def int4_columns(weight: Float32, block: int) -> Columns:
    """Blocks of `block` inputs share a scale; scales [outputs, blocks] are 1 to 16 times the output's smallest.

    That form (low power block quantisation) is what the HTP multiplies without leaving integers: when a context binary
    is made, the 16th part of an output's largest scale becomes the output's scale and the rest small integers.
    CompileError when the blocks do not come out even.
    """
    outputs, inputs = weight.shape
    if inputs % block:
        raise CompileError(f"w4a16 needs matrices whose {inputs} inputs {block} divides; choose another --block")
    blocks = weight.reshape(outputs, -1, block)
    wanted = _best_scales(blocks)
    largest = wanted.max(axis=1, keepdims=True)
    units = np.where(largest == 0, np.float32(1.0), largest) / np.float32(SCALE_STEPS)
    scales = (np.clip(np.rint(wanted / units), 1, SCALE_STEPS) * units).astype(np.float32)
    return Columns(_round(blocks, scales).reshape(outputs, inputs), scales)


def _best_scales(blocks: Float32) -> Float32:
    """[outputs, blocks]: of the clippings of each block the one that loses least; 0 for a block of zeros."""
    peaks = np.abs(blocks).max(axis=2)
    best = _scales(peaks, INT4_LIMIT)
    least = np.full(peaks.shape, np.inf, np.float32)
    for clip in CLIPS:
        scales = _scales(peaks * clip, INT4_LIMIT)
        error = np.square(_round(blocks, scales) * scales[:, :, None] - blocks).sum(axis=2)
        best = np.where(error < least, scales, best)
        least = np.minimum(error, least)
    return np.where(peaks < TINY, np.float32(0.0), best)


def pack_int4(integers: SignedBytes) -> NDArray[np.uint8]:
    """ONNX's INT4 layout: two's complement, the first of two in the low half; an odd last one stands beside a zero."""
    flat = integers.reshape(-1).view(np.uint8) & np.uint8(15)
    if flat.size % 2:
        flat = np.append(flat, np.uint8(0))
    return flat[0::2] | (flat[1::2] << np.uint8(4))


def table_encoding(slices: Iterable[Float32]) -> Encoding:
    """One 16-bit encoding for an embedding table: exactly its range, for it holds every value there will be."""
    low = high = 0.0
    for piece in slices:
        low, high = min(low, float(piece.min())), max(high, float(piece.max()))
    scale = float(np.float32((high - low) / WIDE_CODES or 1.0))
    return Encoding("uint16", scale, round(-low / scale))


def table_codes(slices: Iterable[Float32], encoding: Encoding) -> Iterator[NDArray[np.generic]]:
    """The table's rows as codes."""
    for piece in slices:
        yield encoding.encode(piece.astype(np.float64))


def _scales(peaks: Float32, limit: int) -> Float32:
    """Zeros, and what a scale would vanish for, get a scale of 1: they stay zeros instead of becoming NaN."""
    return np.where(peaks < TINY, np.float32(1.0), peaks / np.float32(limit)).astype(np.float32)


def _round(blocks: Float32, scales: Float32) -> SignedBytes:
    """Four-bit integers of blocks [outputs, blocks, block]."""
    rounded = np.clip(np.rint(blocks / scales[:, :, None]), -INT4_LIMIT - 1, INT4_LIMIT)
    return np.asarray(rounded, np.int8)
