"""Codes in blocks that share a scale and a zero point, rounded to nearest; the layouts that methods store.

Codes have 4 bits, 0..15, but for those that stand for a whole row with one scale: these have 8.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import INT4_MIDDLE, INT8_MIDDLE, Blocks, Bytes, Float32, Float64, Floats
from engine.errors import CompileError

HIGHEST = 15
LEAST_BYTE, MOST_BYTE = 1, 255  # so that the least and the most of 8 bits are as large
TINY = np.float32(1e-30)
FINEST = np.float32(2**-12)


class Coding(Enum):
    """Which numbers the 16 codes of a block stand for."""

    SYMMETRIC = "symmetric"  # (code - 8) * scale, the extreme on code 0; a positive extreme has a negative scale
    POSITIVE = "positive"  # (code - 8) * scale, scale > 0, the largest magnitude on 7 steps; what w4a16 stores
    ASYMMETRIC = "asymmetric"  # (code - zero) * scale, scale > 0, a zero point 0..15 of each block
    OFFSET = "offset"  # the same with any number as zero: what w4 stores, as a number added to the block's weights


@dataclass(frozen=True, slots=True)
class BlockScales:
    """scales [outputs, blocks], never 0. block: inputs of each. zeros [outputs, blocks]: the code, 0..15, that stands
    for 0, None = 8 everywhere; float32 where a block has an offset, and then any number."""

    scales: Float32
    zeros: Bytes | Float32 | None
    block: int


@dataclass(frozen=True, slots=True)
class BlockCodes:
    """codes [outputs, blocks, block] and what they are multiples of. inputs: columns before padding."""

    codes: Bytes
    grid: BlockScales
    inputs: int
    bits: int = 4

    def floats(self) -> Float32:
        """The weights [outputs, inputs] that the codes stand for."""
        values = self.codes.astype(np.float32)
        values -= 1 << (self.bits - 1) if self.grid.zeros is None else self.grid.zeros[:, :, None]
        values *= self.grid.scales[:, :, None]
        return values.reshape(len(values), -1)[:, : self.inputs]

    def blocks(self) -> Blocks:
        scales, zeros = self.grid.scales, self.grid.zeros
        if zeros is None or zeros.dtype != np.float32:
            return Blocks(self.bits, self.codes, scales, None if zeros is None else zeros.astype(np.uint8))
        return Blocks(4, self.codes, scales, offsets=(INT4_MIDDLE - zeros) * scales)

    def integers(self) -> NDArray[np.int8]:
        """[outputs, inputs] around 0, as integer graphs store them; ValueError when there are zero points."""
        if self.grid.zeros is not None:
            raise ValueError("codes with zero points are no signed integers")
        signed = (self.codes.astype(np.int16) - (1 << (self.bits - 1))).astype(np.int8)
        return signed.reshape(len(signed), -1)[:, : self.inputs]


def in_blocks(weight: Floats, block: int) -> Floats:
    """[outputs, inputs] as [outputs, blocks, block]; a last block that is not full is padded with zeros."""
    if missing := -weight.shape[1] % block:
        weight = np.pad(weight, ((0, 0), (0, missing)))
    return weight.reshape(len(weight), -1, block)


def extreme_scales(weight: Floats, block: int, coding: Coding) -> BlockScales:
    """Scales of [outputs, inputs] that reach the extremes of each block."""
    blocks = in_blocks(weight, block)
    return block_scales(*from_extremes(blocks.max(axis=2), blocks.min(axis=2), coding), block, coding)


def block_scales(scales: Float32, zeros: Float32, block: int, coding: Coding) -> BlockScales:
    """zeros [outputs, blocks] in the type in which a coding has them."""
    if coding is Coding.OFFSET:
        return BlockScales(scales, zeros.astype(np.float32, copy=False), block)
    return BlockScales(scales, zeros.astype(np.uint8) if coding is Coding.ASYMMETRIC else None, block)


def from_extremes(high: Floats, low: Floats, coding: Coding) -> tuple[Float32, Float32]:
    """Scales and zero points, both in the shape of `high`, the largest values, and `low`, the smallest."""
    if coding is Coding.ASYMMETRIC:
        high, low = np.maximum(high, 0), np.minimum(low, 0)
        scales = usable((high - low) / np.float32(HIGHEST))
        return scales, np.clip(np.rint(-low / scales), 0, HIGHEST).astype(np.float32)
    if coding is Coding.OFFSET:
        # An offset is stored in half precision: steps that are finer than that have no use.
        finest = np.maximum(np.abs(high), np.abs(low)) * FINEST
        scales = usable(np.maximum((high - low) / np.float32(HIGHEST), finest))
        return scales, np.asarray(-low / scales, np.float32)
    if coding is Coding.POSITIVE:
        scales = usable(np.maximum(high, -low) / np.float32(INT4_MIDDLE - 1))
    else:
        # The larger side is put on -8, the end of the range that has one step more.
        scales = usable(np.where(high > -low, high, low) / np.float32(-INT4_MIDDLE))
    return scales, np.full(scales.shape, INT4_MIDDLE, np.float32)


def usable(scales: Floats) -> Float32:
    """1 in place of a scale whose reciprocal would be infinite: its block is all zeros or as good as that."""
    return np.where(np.abs(scales) < TINY, np.float32(1.0), scales).astype(np.float32)


def levels(values: Floats, scales: Floats, zeros: Floats | np.float32) -> Floats:
    """The nearest codes 0..15, as floats in the type of `values`; scales and zeros are broadcast to it."""
    codes = values * np.divide(1, scales, dtype=values.dtype)
    codes += zeros
    return levelled(codes)


def levelled(codes: Floats, lowest: int = 0, highest: int = HIGHEST) -> Floats:
    """The same array, each number the nearest of these; np.clip takes longer to begin than short rows to round."""
    codes += np.float32(0.5)  # the floor then rounds
    np.maximum(codes, lowest, out=codes)
    np.minimum(codes, highest + 0.5, out=codes)
    return np.floor(codes, out=codes)


def rounded(weight: Floats, grid: BlockScales) -> BlockCodes:
    """[outputs, inputs] rounded to nearest."""
    zeros = np.float32(INT4_MIDDLE) if grid.zeros is None else grid.zeros[:, :, None].astype(np.float32)
    codes = levels(in_blocks(weight, grid.block), grid.scales[:, :, None], zeros)
    return BlockCodes(codes.astype(np.uint8), grid, weight.shape[1])


def row_scales(weight: Floats) -> BlockScales:
    """Of [outputs, inputs] in 8 bits: one for each row, with which its largest weight is 127 steps."""
    reach = np.abs(weight).max(axis=1, keepdims=True)
    return BlockScales(usable(reach / np.float32(MOST_BYTE - INT8_MIDDLE)), None, weight.shape[1])


def rounded_rows(weight: Floats) -> BlockCodes:
    """[outputs, inputs] in 8 bits, rounded to nearest."""
    grid = row_scales(weight)
    codes = levelled(weight / grid.scales + np.float32(INT8_MIDDLE), LEAST_BYTE, MOST_BYTE)
    return BlockCodes(codes.astype(np.uint8)[:, None], grid, weight.shape[1], bits=8)


DAMPING = 0.01  # of the mean diagonal, at least: as GPTQ's
SCARCE = 0.5  # the same, times inputs for each token: what few tokens say of inputs together is noise
RUN = 2048  # rows of inputs multiplied at once: adding a product to others costs as much as hundreds of rows


class InputStatistics:
    """Of all inputs x [rows, inputs] added so far: H = 2 XᵀX; memory does not grow with rows.

    Products of a run of rows are float32, which is twice as fast and errs by 1e-7 of a diagonal that damping raises by
    1e-2 of its mean. Their sum is float64: in float32 a late run would be rounded away beside what was summed before
    it, and the Cholesky factorisation of a nearly singular matrix needs the digits.
    """

    def __init__(self, inputs: int) -> None:
        self._products = np.zeros((inputs, inputs), np.float64)
        self.rows = 0

    def add(self, x: Floats) -> None:
        """x [rows, inputs], any leading shape; CompileError when it holds NaN or infinity."""
        x = x.reshape(-1, len(self._products))
        for start in range(0, len(x), RUN):
            run = x[start : start + RUN].astype(np.float32, copy=False)
            if not np.isfinite(run).all():
                raise CompileError("the calibration inputs of a layer are not finite")
            self._products += run.T @ run
            self.rows += len(run)

    @property
    def hessian(self) -> Float64:
        """2 XᵀX [inputs, inputs]; a row and column of zeros for an input that was always 0."""
        return 2 * self._products


def in_runs(texts: Iterable[Floats]) -> Iterator[Floats]:
    """Texts [tokens, inputs] one behind the other, in runs of `RUN` rows or, with the text that fills one, more."""
    run: list[Floats] = []
    for text in texts:
        run.append(text)
        if sum(map(len, run)) >= RUN:
            yield np.concatenate(run)
            run = []
    if run:
        yield np.concatenate(run)


def damping_of(inputs: int, tokens: int) -> float:
    """The share of the mean diagonal that is added to the Hessian of so many tokens."""
    return max(DAMPING, SCARCE * inputs / tokens)


def damped(hessian: Float64, damping: float, block: int = 1) -> Float64:
    """H + damping * mean(diag H) I, of which every minor is positive; the identity when all inputs were 0.

    An input that was always 0 keeps only the damping: nothing compensates for it or is compensated by it, and its
    weights, which other inputs may need, are rounded to nearest instead of being lost. Columns that pad the inputs to
    whole blocks are coupled to nothing. ValueError unless damping > 0.
    """
    if damping <= 0:
        raise ValueError("without damping the Hessian of fewer samples than inputs has no inverse")
    inputs, mean = len(hessian), float(np.trace(hessian)) / len(hessian)
    result = np.pad(hessian, (0, -inputs % block))
    result[np.diag_indices(inputs)] += damping * mean or 1.0
    result[range(inputs, len(result)), range(inputs, len(result))] = 1
    return result


def output_errors(weight: Floats, quantised: Floats, hessian: Floats) -> Float64:
    """[outputs]: e H eᵀ of each output's error e, the squared output error summed over the samples (twice, as H)."""
    error = weight - quantised
    return np.asarray(np.einsum("oi,oi->o", error @ hessian.astype(error.dtype, copy=False), error, dtype=np.float64))
