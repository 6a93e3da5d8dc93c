"""What is measured of the inputs that some matrices share, in the chosen stream and in that of floats beside it.

With x of the chosen stream, y of the float one and d what the float stream is ahead by where the outputs are added:
the best any matrix W' can do in place of W on x is least squares, min over W' of |x W'ᵀ - (y Wᵀ + d)|², which is
W' = W + (W Σ (y - x)ᵀ x + Σ dᵀ x) (Σ xᵀ x)⁻¹. So codes are chosen for W', and what earlier layers lost is made up for
as far as this layer can. A ridge keeps W' at W where text says little.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engine.compile.calibrated.streams import Streams
from engine.compile.quantization.blocks import Float32
from engine.compile.rounding.code_state import Curvature
from engine.compile.rounding.gptq import ColumnOrder, Factor, factorised
from engine.compile.rounding.hessian import Float64, InputStatistics, in_runs

RIDGE = 0.03  # of the mean diagonal of Σ xᵀ x, at least
SCARCE = 0.7  # the same, times inputs for each token: with few tokens least squares learns their noise


@dataclass(frozen=True, slots=True)
class SharedInputs:
    """hessian: 2 Σ xᵀ x; factor, curvature: of it. by_column: a factor in another order, where codes are chosen twice.

    lag [inputs, inputs]: Σ (y - x)ᵀ x. drift [outputs, inputs]: Σ dᵀ x, or None. correction [inputs, inputs]: lag
    (Σ xᵀ x)⁻¹, where there is no drift. ridge: as a share of the mean diagonal.
    """

    hessian: Float64
    factor: Factor
    by_column: Factor | None
    curvature: Curvature
    lag: Float32
    drift: Float32 | None
    correction: Float32 | None
    ridge: float

    @classmethod
    def measured(cls, inputs: Streams, block: int, ahead: Streams | None = None, again: bool = False) -> "SharedInputs":
        """ahead: the streams whose difference is d. again: whether codes are chosen twice. CompileError for inputs that
        are not finite."""
        width = inputs.chosen[0].shape[1]
        statistics, lag = InputStatistics(width), np.zeros((width, width), np.float32)
        for x, y in zip(in_runs(inputs.chosen), in_runs(inputs.floats), strict=True):
            statistics.add(x)
            lag += (y - x).T @ x
        drift = None if ahead is None else _drift(inputs.chosen, ahead)
        hessian = statistics.hessian
        ridge = ridge_of(width, statistics.rows)
        correction = _times_inverse(hessian, lag, ridge) if drift is None else None
        factor = factorised(hessian, block, order=ColumnOrder.BLOCKS)
        by_column = factorised(hessian, block, order=ColumnOrder.COLUMNS) if again else None
        return cls(hessian, factor, by_column, Curvature.of(hessian, block), lag, drift, correction, ridge)

    def target(self, weight: Float32) -> Float32:
        """W' of W [outputs, inputs]."""
        if self.correction is not None:
            return weight + weight @ self.correction
        assert self.drift is not None
        return weight + _times_inverse(self.hessian, weight @ self.lag + self.drift, self.ridge)


def ridge_of(inputs: int, tokens: int) -> float:
    """The share of the mean diagonal that is added to it."""
    return max(RIDGE, SCARCE * inputs / tokens)


def _drift(inputs: Iterable[Float32], ahead: Streams) -> Float32:
    runs = zip(*map(in_runs, (inputs, ahead.chosen, ahead.floats)), strict=True)
    return np.asarray(sum((y - x).T @ given for given, x, y in runs), np.float32)


def _times_inverse(hessian: Float64, matrix: Float32, ridge: float) -> Float32:
    """matrix [rows, inputs] times the inverse of Σ xᵀ x with its ridge; 0 where all inputs were 0."""
    products = (hessian / 2).astype(np.float32)
    mean = float(np.trace(products)) / len(products)
    if mean == 0:
        return np.zeros_like(matrix)
    products[np.diag_indices_from(products)] += np.float32(ridge * mean)
    return np.ascontiguousarray(np.linalg.solve(products, matrix.T).T)
