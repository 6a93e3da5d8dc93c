"""What is measured of the inputs that some matrices share, in the chosen stream and in that of floats beside it.

With x of the chosen stream, y of the float one and d what the float stream is ahead by where the outputs are added:
the best any matrix W' can do in place of W on x is least squares, min over W' of |x W'ᵀ - (y Wᵀ + d)|², which is
W' = W + (W Σ (y - x)ᵀ x + Σ dᵀ x) (Σ xᵀ x)⁻¹. So codes are chosen for W', and what earlier layers lost is made up for
as far as this layer can. A ridge keeps W' at W where text says little.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.compile.calibrated.streams import Streams
from engine.compile.quantization.blocks import Float32
from engine.compile.rounding.code_state import Curvature
from engine.compile.rounding.gptq import ColumnOrder, Factor, factorised
from engine.compile.rounding.hessian import Float64, InputStatistics, damping_of, in_runs

RIDGE = 0.03  # of the mean diagonal of Σ xᵀ x, at least
SCARCE = 0.7  # the same, times inputs for each token: with few tokens least squares learns their noise


@dataclass(frozen=True, slots=True)
class Addition:
    """The one matrix [outputs, inputs] that reads the inputs, and the streams that its outputs are added to."""

    weight: Float32
    streams: Streams


@dataclass(frozen=True, slots=True)
class SharedInputs:
    """hessian: 2 Σ xᵀ x; factor, curvature: of it.

    correction [inputs, inputs]: Σ (y - x)ᵀ x (Σ xᵀ x)⁻¹. change [outputs, inputs]: W' - W of the one matrix whose
    outputs are added to a stream, in its place.
    """

    hessian: Float64
    factor: Factor
    curvature: Curvature
    correction: Float32 | None
    change: Float32 | None

    @classmethod
    def measured(cls, inputs: Streams, block: int, addition: Addition | None = None) -> "SharedInputs":
        """CompileError for inputs that are not finite."""
        width = inputs.chosen[0].shape[1]
        statistics = InputStatistics(width)
        lag = np.zeros((width if addition is None else len(addition.weight), width), np.float32)
        for x, behind in _behind(inputs, addition):
            statistics.add(x)
            lag += behind.T @ x
        hessian = statistics.hessian
        damping = damping_of(width, statistics.rows)
        factor = factorised(hessian, block, damping=damping, order=ColumnOrder.BLOCKS)
        solved = _times_inverse(hessian, lag, ridge_of(width, statistics.rows))
        correction, change = (solved, None) if addition is None else (None, solved)
        return cls(hessian, factor, Curvature.of(hessian, block, damping), correction, change)

    def target(self, weight: Float32) -> Float32:
        """W' of W [outputs, inputs]: of any matrix, or of the one whose outputs are added."""
        if self.correction is not None:
            return weight + weight @ self.correction
        assert self.change is not None
        return weight + self.change


def ridge_of(inputs: int, tokens: int) -> float:
    """The share of the mean diagonal that is added to it."""
    return max(RIDGE, SCARCE * inputs / tokens)


def _behind(inputs: Streams, addition: Addition | None) -> Iterator[tuple[Float32, Float32]]:
    """Runs of x, and what they are behind by: y - x, or where outputs are added (y - x) Wᵀ + d."""
    if addition is None:
        for x, y in zip(in_runs(inputs.chosen), in_runs(inputs.floats), strict=True):
            yield x, np.subtract(y, x)
        return
    streams = (inputs.chosen, inputs.floats, addition.streams.chosen, addition.streams.floats)
    for x, y, chosen, floats in zip(*map(in_runs, streams), strict=True):
        behind = (y - x) @ addition.weight.T
        behind += floats
        behind -= chosen
        yield x, behind


def _times_inverse(hessian: Float64, matrix: Float32, ridge: float) -> Float32:
    """matrix [rows, inputs] times the inverse of Σ xᵀ x with its ridge; 0 where all inputs were 0."""
    products = (hessian / 2).astype(np.float32)
    mean = float(np.trace(products)) / len(products)
    if mean == 0:
        return np.zeros_like(matrix)
    products[np.diag_indices_from(products)] += np.float32(ridge * mean)
    return np.ascontiguousarray(np.linalg.solve(products, matrix.T).T)
