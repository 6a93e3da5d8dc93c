"""LPBQ: the scale of a block is 1 to 16 times a unit of its output, the form the HTP multiplies as integers.

The unit is found again as the 16th part of an output's largest scale, so one block of each has 16 units.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import INT4_MIDDLE, Float32
from engine.compile.quantisation.rounding.codes import BlockScales, Floats, in_blocks, usable
from engine.compile.quantisation.rounding.gptq import ChooseScales, weighted_error

MULTIPLES = 16
FORM_ERROR = 1e-3  # of a multiple, as scales are rounded
# Shares of the unit that reaches the largest scale, 1 first: of equal errors the first is kept.
UNIT_SHARES = (1.0, *(step / 20 for step in range(14, 23) if step != 20))
_MIDDLE = np.float32(INT4_MIDDLE)
_OUTPUTS = 2048  # searched at once


def reaching_scales(weight: Floats, block: int) -> Float32:
    """[outputs, blocks]: what puts the largest magnitude of a block on 7 steps; 0 for a block of zeros."""
    peaks = np.abs(in_blocks(weight, block)).max(axis=2)
    return np.asarray(peaks / np.float32(INT4_MIDDLE - 1), np.float32)


def units_of(wanted: Float32) -> Float32:
    """[outputs]: the 16th part of each output's largest scale of [outputs, blocks]."""
    return usable(wanted.max(axis=1) / np.float32(MULTIPLES))


def searched_multiples(
    weight: Floats, block: int, importance: Floats, shares: Sequence[float] = UNIT_SHARES
) -> BlockScales:
    """Of [outputs, inputs]: for each output the unit, and for each block the multiple, with the least weighted error.

    importance [inputs]: the Hessian's diagonal. shares: of the unit that reaches the largest weight, whose block gets
    16. Every multiple is tried for every unit: exact on this grid.
    """
    columns = np.ascontiguousarray(in_blocks(weight, block).transpose(1, 2, 0))
    weights = in_blocks(importance[None].astype(weight.dtype), block)[0]
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
        return scales, np.full(len(units), _MIDDLE)

    return choose


def has_multiples(scales: Float32) -> bool:
    """Whether scales [outputs, blocks] have the form: none is anything but 1 to 16 units."""
    multiples = scales / units_of(scales)[:, None]
    nearest = np.clip(np.rint(multiples), 1, MULTIPLES)
    return bool((np.abs(multiples - nearest) < FORM_ERROR).all())


def _best_multiples(
    values: Floats, importance: Floats, units: Float32, is_top: NDArray[np.bool_]
) -> tuple[Float32, Floats]:
    """Scales [outputs] of one block, values [block, outputs], and their errors [outputs]. is_top: who gets 16 units."""
    scales, least = np.empty_like(units), np.empty(len(units), values.dtype)
    for start in range(0, len(units), _OUTPUTS):
        run = slice(start, start + _OUTPUTS)
        part = np.ascontiguousarray(values[:, run])
        candidates = [units[run] * np.float32(multiple) for multiple in range(1, MULTIPLES + 1)]
        errors = np.stack([weighted_error(part, importance, candidate, _MIDDLE) for candidate in candidates])
        best = np.where(is_top[run], MULTIPLES - 1, errors.argmin(axis=0))
        scales[run] = np.stack(candidates)[best, range(len(best))]
        least[run] = errors[best, range(len(best))]
    return scales, least
