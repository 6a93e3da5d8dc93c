"""The scale, and zero point, of each block whose rounding to nearest loses least of the layer's output."""

import numpy as np

from engine.compile.quantization.blocks import Float32
from engine.compile.rounding.codes import HIGHEST, BlockScales, Coding, Floats, from_extremes, in_blocks, levels

# Shares of the extreme, 1 first: of equal errors the first is kept, so that nothing moves without a gain.
SHARES = (1.0, *(step / 40 for step in range(28, 45) if step != 40))
ZERO_SHIFTS = (0, -1, 1)
_OUTPUTS = 256  # searched at once: what all candidates make of a block's values stays in the cache


def searched_scales(weight: Floats, block: int, coding: Coding, importance: Floats) -> BlockScales:
    """Scales of [outputs, inputs]; importance [inputs]: the Hessian's diagonal, the weight of squared errors."""
    columns = np.ascontiguousarray(in_blocks(weight, block).transpose(1, 2, 0))
    weights = in_blocks(importance[None].astype(weight.dtype), block)[0]
    found = [search_block(values, weights[index], coding) for index, values in enumerate(columns)]
    scales = np.stack([scales for scales, _ in found], axis=1)
    if coding is not Coding.ASYMMETRIC:
        return BlockScales(scales, None, block)
    return BlockScales(scales, np.stack([zeros for _, zeros in found], axis=1).astype(np.uint8), block)


def search_block(values: Floats, importance: Floats, coding: Coding) -> tuple[Float32, Float32]:
    """Scales [outputs] and zero points [outputs] of one block, values [block, outputs]; importance [block]."""
    outputs = values.shape[1]
    runs = [slice(start, start + _OUTPUTS) for start in range(0, outputs, _OUTPUTS)]
    found = [_search(np.ascontiguousarray(values[:, run]), importance, coding) for run in runs]
    return np.concatenate([scales for scales, _ in found]), np.concatenate([zeros for _, zeros in found])


def _search(values: Floats, importance: Floats, coding: Coding) -> tuple[Float32, Float32]:
    widest, middle = from_extremes(values.max(axis=0), values.min(axis=0), coding)
    shifts = ZERO_SHIFTS if coding is Coding.ASYMMETRIC else (0,)
    scales = np.repeat(np.array(SHARES, np.float32), len(shifts))[:, None] * widest
    zeros = np.clip(middle + np.tile(np.array(shifts, np.float32), len(SHARES))[:, None], 0, HIGHEST)
    best = weighted_error(values, importance, scales[:, None], zeros[:, None]).argmin(axis=0)[None]
    return np.take_along_axis(scales, best, 0)[0], np.take_along_axis(zeros, best, 0)[0]


def weighted_error(values: Floats, importance: Floats, scales: Floats, zeros: Floats | np.float32) -> Floats:
    """[..., outputs]: squared errors of values [block, outputs] rounded to nearest, summed by importance [block].

    scales, zeros: [outputs], or [..., 1, outputs] to try more at once.
    """
    error = levels(values, scales, zeros)
    error -= zeros
    error *= scales
    error -= values
    return np.asarray(importance @ np.square(error, out=error))
