"""What calibration inputs say about a linear layer: the Hessian of its squared output error."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.rounding.codes import Floats
from engine.errors import CompileError

Float64 = NDArray[np.float64]

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


def damped(hessian: Float64, damping: float) -> Float64:
    """H + damping * mean(diag H) I, of which every minor is positive; the identity when all inputs were 0.

    An input that was always 0 keeps only the damping: nothing compensates for it or is compensated by it, and its
    weights, which other inputs may need, are rounded to nearest instead of being lost. ValueError unless damping > 0.
    """
    if damping <= 0:
        raise ValueError("without damping the Hessian of fewer samples than inputs has no inverse")
    mean = float(np.trace(hessian)) / len(hessian)
    if mean == 0:
        return np.eye(len(hessian))
    result = hessian.copy()
    result[np.diag_indices_from(result)] += damping * mean
    return result


def output_errors(weight: Floats, quantised: Floats, hessian: Floats) -> Float64:
    """[outputs]: e H eᵀ of each output's error e, the squared output error summed over the samples (twice, as H)."""
    error = weight - quantised
    products = error @ hessian.astype(error.dtype, copy=False)
    return np.asarray(np.einsum("oi,oi->o", products, error, dtype=np.float64))
