"""AWQ's channel scales: inputs that are large get finer weights; what comes before the layer is divided by the same."""

from collections.abc import Sequence

import numpy as np

from engine.compile.quantization.blocks import Float32
from engine.compile.rounding.codes import Coding, Floats, extreme_scales, rounded

ALPHAS = tuple(step / 20 for step in range(20))
LIMIT = 1e4  # of a scale and of its reciprocal


def channel_scales(magnitudes: Floats, alpha: float) -> Float32:
    """[inputs]: mean |x| to the power of alpha, the middle of their range at 1; 1 where an input was always 0."""
    living = magnitudes > 0
    if not living.any():
        return np.ones(len(magnitudes), np.float32)
    powers = np.where(living, magnitudes, 1.0) ** alpha
    middle = np.sqrt(powers[living].max() * powers[living].min())
    scales = np.where(living, powers / middle, 1.0)
    return np.clip(scales, 1 / LIMIT, LIMIT).astype(np.float32)


def searched_channel_scales(
    weights: Sequence[Floats], x: Floats, magnitudes: Floats, block: int, coding: Coding
) -> Float32:
    """[inputs], of all matrices [outputs, inputs] that read the same x: the alpha of the grid with the least error.

    x [rows, inputs]: a sample of the inputs, or any matrix whose xᵀx is theirs, such as a Cholesky factor, transposed.
    The error is that of the outputs when weights times scales are rounded to nearest. Alpha 0 leaves all as it is.
    """
    candidates = [channel_scales(magnitudes, alpha) for alpha in ALPHAS]
    errors = [sum(_output_error(weight, scales, x, block, coding) for weight in weights) for scales in candidates]
    return candidates[int(np.argmin(errors))]


def _output_error(weight: Floats, scales: Float32, x: Floats, block: int, coding: Coding) -> float:
    scaled = folded_into_columns(weight, scales)
    quantised = rounded(scaled, extreme_scales(scaled, block, coding)).floats() / scales
    return float(np.square((quantised - weight) @ x.T).sum(dtype=np.float64))


def folded_into_columns(weight: Floats, scales: Float32) -> Floats:
    """[outputs, inputs] for inputs that are divided by scales [inputs]."""
    return np.asarray(weight * scales)


def folded_into_rows(weight: Floats, scales: Float32) -> Floats:
    """[outputs, inputs] or bias [outputs] of a layer whose outputs are to be divided by scales [outputs]."""
    return np.asarray(weight / (scales[:, None] if weight.ndim == 2 else scales))


def folded_into_norm(gain: Floats, scales: Float32, offset: float = 0.0) -> Floats:
    """[inputs]: gain, or bias, of a norm whose outputs are to be divided by scales. offset: 1 if it takes 1 + gain."""
    return np.asarray((gain + offset) / scales - offset)
