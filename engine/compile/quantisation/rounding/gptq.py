"""GPTQ: each column of a matrix is rounded so that the columns after it make good what its rounding lost.

H = R Rᵀ, R upper triangular, gives what the method needs of the inverse: H⁻¹ = UᵀU with U = R⁻¹, whose blocks on the
diagonal are the inverses of R's. So one Cholesky factorisation does, and H is never inverted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import INT4_MIDDLE, INT8_MIDDLE, Bools, Bytes, Float32, Float64, Floats
from engine.compile.quantisation.rounding import codes as rounding
from engine.compile.quantisation.rounding.codes import HIGHEST, BlockCodes, BlockScales, Coding
from engine.errors import CompileError

# Shares of the extreme, 1 first: of equal errors the first is kept, so that nothing moves without a gain.
SHARES = (1.0, *(step / 40 for step in range(28, 45) if step != 40))
ZERO_SHIFTS = {Coding.ASYMMETRIC: (0.0, -1.0, 1.0), Coding.OFFSET: (0.0, -0.25, 0.25)}
_OUTPUTS = 256  # searched at once: what all candidates make of a block's values stays in the cache


def search_block(values: Floats, importance: Floats, coding: Coding) -> tuple[Float32, Float32]:
    """Scales [outputs] and zero points [outputs] of one block, values [block, outputs]; importance [block]."""
    outputs = values.shape[1]
    runs = (np.ascontiguousarray(values[:, start : start + _OUTPUTS]) for start in range(0, outputs, _OUTPUTS))
    scales, zeros = zip(*(_search(run, importance, coding) for run in runs), strict=True)
    return np.concatenate(scales), np.concatenate(zeros)


def _search(values: Floats, importance: Floats, coding: Coding) -> tuple[Float32, Float32]:
    widest, middle = rounding.from_extremes(values.max(axis=0), values.min(axis=0), coding)
    shifts = ZERO_SHIFTS.get(coding, (0.0,))
    shares = np.repeat(np.array(SHARES, np.float32), len(shifts))[:, None]
    scales, zeros = shares * widest, np.repeat(middle[None], len(shares), axis=0)
    if coding is Coding.OFFSET:  # a range with an offset is cut evenly
        half = np.float32(HIGHEST / 2)
        zeros = half + (middle - half) / shares
    zeros = zeros + np.tile(np.array(shifts, np.float32), len(SHARES))[:, None]
    if coding is Coding.ASYMMETRIC:
        zeros = np.clip(zeros, 0, HIGHEST)
    best = weighted_error(values, importance, scales[:, None], zeros[:, None]).argmin(axis=0)[None]
    return np.take_along_axis(scales, best, 0)[0], np.take_along_axis(zeros, best, 0)[0]


def weighted_error(values: Floats, importance: Floats, scales: Floats, zeros: Floats | np.float32) -> Floats:
    """[..., outputs]: squared errors of values [block, outputs] rounded to nearest, summed by importance [block].
    scales, zeros: [outputs], or [..., 1, outputs] to try more at once."""
    error = rounding.levels(values, scales, zeros)
    error -= zeros
    error *= scales
    error -= values
    return np.asarray(importance @ np.square(error, out=error))


# Scales [outputs] and zero points [outputs] of one block: values [block, outputs], importance [block], its place.
ChooseScales = Callable[[Floats, Floats, int], tuple[Float32, Float32]]


@dataclass(frozen=True, slots=True)
class Factor:
    """What all matrices that read the same inputs share. Rows and columns stand in the order of rounding. Whole blocks
    come by descending sum of their diagonals, and each block's columns by descending diagonal. The place of a column in
    the stored blocks stays the same. upper [columns, columns]: R of the damped Hessian; columns = inputs padded to
    whole blocks. order [columns]: which input is rounded when. importance [columns]: the damped diagonal."""

    upper: Floats
    order: NDArray[np.intp]
    importance: Floats
    block: int

    def of_inputs(self) -> Floats:
        """importance [columns] in the order of the inputs."""
        found = np.empty_like(self.importance)
        found[self.order] = self.importance
        return found

    def divided(self, scales: Float64) -> "Factor":
        """Of inputs divided by scales [inputs], damped as these were: R of D⁻¹ H D⁻¹ is D⁻¹ R."""
        own = np.pad(scales, (0, len(self.order) - len(scales)), constant_values=1)[self.order]
        upper = self.upper / own.astype(self.upper.dtype)[:, None]
        return replace(self, upper=upper, importance=self.importance / np.square(own))


def factorised(
    hessian: Float64, block: int, *, damping: float = rounding.DAMPING, dtype: type[np.floating[Any]] = np.float32
) -> Factor:
    """Of H [inputs, inputs]; damping as a share of its mean diagonal. dtype: of the factor, once computed in float64.
    CompileError when H has no Cholesky factor."""
    inputs = len(hessian)
    matrix = rounding.damped(hessian, damping, block)
    diagonal = np.diagonal(matrix).copy()
    blocks = np.where(np.arange(len(matrix)) < inputs, diagonal, 0).reshape(-1, block)
    first, inside = (np.argsort(-sizes, axis=-1, kind="stable") for sizes in (blocks.sum(axis=1), blocks))
    columns = (inside + np.arange(len(blocks))[:, None] * block)[first].reshape(-1)
    backwards = columns[::-1]
    # The lower factor of the reversed matrix, reversed, is the upper one of the matrix.
    try:
        lower = np.linalg.cholesky(matrix[np.ix_(backwards, backwards)])
    except np.linalg.LinAlgError as error:
        raise CompileError(f"the Hessian is not positive definite; raise the damping above {damping:g}") from error
    return Factor(lower[::-1, ::-1].astype(dtype, order="C"), columns, diagonal[columns], block)


def compensated_searching(weight: Floats, factor: Factor, choose: ChooseScales, coding: Coding) -> BlockCodes:
    """[outputs, inputs]; the scales of a block are chosen when it is reached, on its weights as compensated by then.
    Rows do not know each other: a tall matrix may come in slices. Computed in the type of `weight`. coding: with zero
    points or without."""
    block = factor.block
    scales = np.empty((len(factor.order) // block, len(weight)), np.float32)
    zeros = np.empty_like(scales)

    def chosen(values: Floats, part: slice) -> tuple[Float32, Float32]:
        index = factor.order[part.start] // block
        scales[index], zeros[index] = choose(values, factor.importance[part].astype(values.dtype), int(index))
        return np.broadcast_to(scales[index], values.shape), np.broadcast_to(zeros[index], values.shape)

    codes = _codes(weight, factor, chosen)
    grid = rounding.block_scales(np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros.T), block, coding)
    return BlockCodes(codes, grid, weight.shape[1])


def compensated_rows(weight: Floats, factor: Factor) -> BlockCodes:
    """[outputs, inputs] in 8 bits, with one scale for each row."""
    grid, middle = rounding.row_scales(weight), np.float32(INT8_MIDDLE)

    def chosen(values: Floats, _: slice) -> tuple[Float32, Float32]:
        return np.broadcast_to(grid.scales[:, 0], values.shape), np.broadcast_to(middle, values.shape)

    codes = _codes(weight, factor, chosen, (rounding.LEAST_BYTE, rounding.MOST_BYTE)).reshape(len(weight), 1, -1)
    return BlockCodes(np.ascontiguousarray(codes[..., : weight.shape[1]]), grid, weight.shape[1], bits=8)


ScalesOf = Callable[[Floats, slice], tuple[Float32, Float32]]


def _codes(weight: Floats, factor: Factor, scales_of: ScalesOf, limits: tuple[int, int] = (0, HIGHEST)) -> Bytes:
    """[outputs, blocks, block]. scales_of(values [block, outputs], columns): a scale and zero point for each value.
    limits: the least and the most of a code."""
    block, blocks = factor.block, rounding.in_blocks(weight, factor.block)
    values = blocks.reshape(len(weight), -1).T[factor.order]
    upper = factor.upper.astype(weight.dtype, copy=False)
    errors = np.empty_like(values)  # weight - rounded, of the columns done
    codes = np.empty(values.shape, np.uint8)
    for start in range(0, len(values), block):
        part = slice(start, start + block)
        inverse = np.linalg.inv(factor.upper[part, part].astype(np.float64)).astype(weight.dtype)
        # What is best for these columns, given the errors of all columns before them, if the rest could be any number.
        owed = upper[:start, part].T @ errors[:start]
        target = values[part] + inverse.T @ owed
        scales, zeros = scales_of(target, part)
        block_codes = _block_codes(target, inverse, scales, zeros, limits)
        codes[factor.order[part]] = block_codes
        errors[part] = values[part] - (block_codes - zeros) * scales
    return np.ascontiguousarray(codes.T).reshape(blocks.shape)


def _block_codes(target: Floats, inverse: Floats, scales: Float32, zeros: Float32, limits: tuple[int, int]) -> Floats:
    """Columns of one block, one after the other; inverse [block, block] is U's block on the diagonal."""
    codes = np.empty_like(target)
    shares = np.empty_like(target)  # each error divided by U's diagonal
    reciprocals = np.divide(1, scales, dtype=target.dtype)
    for column in range(len(target)):
        value = target[column] - inverse[:column, column] @ shares[:column]
        codes[column] = rounding.levelled(value * reciprocals[column] + zeros[column], *limits)
        rounded = (codes[column] - zeros[column]) * scales[column]
        shares[column] = (value - rounded) / inverse[column, column]
    return codes


def picked_rows(is_one: Bools, one: BlockCodes, other: BlockCodes) -> BlockCodes:
    """Rows of `one` where `is_one` [outputs] says so, else of `other`. ValueError when only one of them has zero
    points, or their blocks differ."""
    if one.grid.block != other.grid.block or (one.grid.zeros is None) != (other.grid.zeros is None):
        raise ValueError("rows of one matrix have one layout")
    zeros = None
    if one.grid.zeros is not None and other.grid.zeros is not None:
        zeros = np.where(is_one[:, None], one.grid.zeros, other.grid.zeros)
    scales = np.where(is_one[:, None], one.grid.scales, other.grid.scales)
    codes = np.where(is_one[:, None, None], one.codes, other.codes)
    return BlockCodes(codes, BlockScales(scales, zeros, one.grid.block), one.inputs, one.bits)


MULTIPLES = 16
FORM_ERROR = 1e-3  # of a multiple, as scales are rounded
# Shares of the unit that reaches the largest scale, 1 first: of equal errors the first is kept.
UNITS = (1.0, *(step / 20 for step in range(14, 23) if step != 20))
_CODE_OF_0 = np.float32(INT4_MIDDLE)
_TOGETHER = 2048  # searched at once


def reaching_scales(weight: Floats, block: int) -> Float32:
    """[outputs, blocks]: what puts the largest magnitude of a block on 7 steps; 0 for a block of zeros."""
    peaks = np.abs(rounding.in_blocks(weight, block)).max(axis=2)
    return np.asarray(peaks / np.float32(INT4_MIDDLE - 1), np.float32)


def units_of(wanted: Float32) -> Float32:
    """[outputs]: the 16th part of each output's largest scale of [outputs, blocks]."""
    return rounding.usable(wanted.max(axis=1) / np.float32(MULTIPLES))


def searched_multiples(weight: Floats, block: int, importance: Floats, shares: Sequence[float] = UNITS) -> BlockScales:
    """Of [outputs, inputs]: for each output the unit, and for each block the multiple, with the least weighted error.
    importance [inputs]: the Hessian's diagonal. shares: of the unit that reaches the largest weight, whose block gets
    16. Every multiple is tried for every unit: exact on this grid."""
    columns = np.ascontiguousarray(rounding.in_blocks(weight, block).transpose(1, 2, 0))
    weights = rounding.in_blocks(importance[None].astype(weight.dtype), block)[0]
    wanted = reaching_scales(weight, block)
    reaching, tops = units_of(wanted), wanted.argmax(axis=1)
    scales = np.empty((len(columns), len(weight)), np.float32)
    least = np.full(len(weight), np.inf)
    for share in shares:
        units = reaching * np.float32(share)
        found = [_best_multiples(values, weights[i], units, tops == i) for i, values in enumerate(columns)]
        error = sum((error for _, error in found), np.zeros(len(weight)))
        better = error < least
        scales = np.where(better, np.stack([block_scales for block_scales, _ in found]), scales)
        least = np.minimum(error, least)
    return BlockScales(np.ascontiguousarray(scales.T), None, block)


def choosing_multiples(grid: BlockScales) -> ChooseScales:
    """For GPTQ: the best multiple of each output's unit in `grid` when a block is reached; its largest block stays."""
    units, tops = units_of(grid.scales), grid.scales.argmax(axis=1)

    def choose(values: Floats, importance: Floats, block: int) -> tuple[Float32, Float32]:
        scales, _ = _best_multiples(values, importance, units, tops == block)
        return scales, np.full(len(units), _CODE_OF_0)

    return choose


def has_multiples(scales: Float32) -> bool:
    """Whether scales [outputs, blocks] have the form: none is anything but 1 to 16 units."""
    multiples = scales / units_of(scales)[:, None]
    nearest = np.clip(np.rint(multiples), 1, MULTIPLES)
    return bool((np.abs(multiples - nearest) < FORM_ERROR).all())


def _best_multiples(values: Floats, importance: Floats, units: Float32, is_top: Bools) -> tuple[Float32, Floats]:
    """Scales [outputs] of one block, values [block, outputs], and their errors [outputs]. is_top: who gets 16 units."""
    scales, least = np.empty_like(units), np.empty(len(units), values.dtype)
    for start in range(0, len(units), _TOGETHER):
        run = slice(start, start + _TOGETHER)
        part = np.ascontiguousarray(values[:, run])
        candidates = [units[run] * np.float32(multiple) for multiple in range(1, MULTIPLES + 1)]
        errors = np.stack([weighted_error(part, importance, candidate, _CODE_OF_0) for candidate in candidates])
        best = np.where(is_top[run], MULTIPLES - 1, errors.argmin(axis=0))
        scales[run] = np.stack(candidates)[best, range(len(best))]
        least[run] = errors[best, range(len(best))]
    return scales, least
