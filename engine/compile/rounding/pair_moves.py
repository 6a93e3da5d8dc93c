"""Two codes of a row changed at once, by a step each, where that loses less than leaving them or changing the first.

A step d = 1 or -1 of code i changes the output error e H eᵀ by a_i(d) = s_i² H_ii - 2 d s_i g_i, with g = H e and s the
scales; steps d and d' of codes i and j change it by a_i(d) + a_j(d') + 2 d d' s_i s_j H_ij. Coordinate descent ends
where no a is negative; such sums can still be, above all where inputs i and j are alike, that is |H_ij| / sqrt(H_ii
H_jj) large. So each column is tried with the columns most like it: the local search with a neighbourhood of two that
integer least squares knows from detection (Sun 2009).
"""

import numpy as np
from numpy.typing import NDArray

from engine.compile.ahead import ahead
from engine.compile.quantization.blocks import Float32
from engine.compile.rounding.code_state import CodeState

Partners = NDArray[np.intp]  # [columns, some]: of each column those most like it, the likest first
OUTPUTS = 512  # of a thread at a time: few enough for its cache, many enough to let go of the interpreter
INFINITE = np.float32(np.inf)
LEAST_GAIN = np.float32(1e-6)  # of s_i² H_ii: less may be rounding of the gradients


def partners_of(hessian: Float32, count: int) -> Partners:
    """Of H [columns, columns] with a positive diagonal; `count` of each column, or all others where there are fewer."""
    count = min(count, len(hessian) - 1)
    lengths = np.sqrt(np.diagonal(hessian))
    found = np.empty((len(hessian), count), np.intp)
    for column, row in enumerate(hessian):
        likeness = np.abs(row) / lengths
        likeness[column] = -1
        nearest = np.argpartition(-likeness, count - 1)[:count] if count else np.empty(0, np.intp)
        found[column] = nearest[np.argsort(-likeness[nearest], kind="stable")]
    return found


def move_pairs(state: CodeState, partners: Partners) -> None:
    """Every column once, with the best step and the best partner's, if any; rows do not know each other."""
    runs = [slice(start, start + OUTPUTS) for start in range(0, state.steps.shape[1], OUTPUTS)]
    for run, rows in zip(runs, ahead(lambda run: _Rows(state, run).swept(partners), runs), strict=True):
        state.steps[:, run], state.gradients[:, run] = rows.steps.T, rows.gradients.T


class _Rows:
    """Some outputs of a state, copied. Arrays are [some, columns], so that what changes of an output lies together."""

    def __init__(self, state: CodeState, run: slice) -> None:
        self.steps, self.gradients, self._scales = (
            np.ascontiguousarray(part[:, run].T) for part in (state.steps, state.gradients, state.scales)
        )
        self._hessian, self._block = state.curvature.hessian, state.curvature.block
        self._diagonal = np.diagonal(self._hessian).copy()
        self._lowest, self._highest = (
            np.broadcast_to(bound if bound.shape[1] == 1 else bound[:, run], state.steps[:, run].shape).T
            for bound in (state.lowest, state.highest)
        )
        # A code at an end has no slope over that end.
        self._least = np.where(self.steps > self._lowest, -INFINITE, np.float32(0))
        self._most = np.where(self.steps < self._highest, INFINITE, np.float32(0))

    def swept(self, partners: Partners) -> "_Rows":
        """Itself, behind one turn over all columns."""
        space = np.empty((6, len(self.steps), partners.shape[1]), np.float32)
        for column, others in enumerate(partners):
            self._move(column, others, space)
        return self

    def _move(self, column: int, others: NDArray[np.intp], space: Float32) -> None:
        """The step of the code that loses least by itself, and a partner's, of the outputs that win by it."""
        scale = self._scales[:, column // self._block]
        slope = 2 * scale * self.gradients[:, column]
        can_rise, can_fall = self._most[:, column] > 0, self._least[:, column] < 0
        step = np.where(can_rise & ((slope > 0) | ~can_fall), np.float32(1), np.float32(-1))
        cost = np.square(scale) * self._diagonal[column]
        slopes, losses = self._partners(others, 2 * self._hessian[column, others], step * scale, space)
        alone = cost - step * slope
        rows = np.flatnonzero(alone + losses.min(axis=1, initial=0) < -LEAST_GAIN * cost)
        self._change(rows, np.full(len(rows), column), step[rows])
        rows = rows[losses[rows].min(axis=1, initial=0) < 0]
        if len(rows):
            best = losses[rows].argmin(axis=1)
            self._change(rows, others[best], np.sign(slopes[rows, best]))

    def _partners(
        self, others: NDArray[np.intp], couplings: Float32, moved: Float32, space: Float32
    ) -> tuple[Float32, Float32]:
        """[some, others]: slopes behind a move of `moved` [some], and what the best step of each then costs."""
        scales, slopes, coupled, least, most, losses = space
        np.take(self._scales, others // self._block, axis=1, out=scales, mode="clip")
        np.take(self.gradients, others, axis=1, out=slopes, mode="clip")
        slopes *= scales
        slopes *= 2
        np.multiply(scales, couplings, out=coupled)
        coupled *= moved[:, None]
        slopes -= coupled
        np.take(self._least, others, axis=1, out=least, mode="clip")
        np.take(self._most, others, axis=1, out=most, mode="clip")
        np.clip(slopes, least, most, out=slopes)
        np.square(scales, out=losses)
        losses *= self._diagonal[others]
        losses -= np.abs(slopes, out=coupled)
        return slopes, losses

    def _change(self, rows: NDArray[np.intp], columns: NDArray[np.intp], steps: Float32) -> None:
        """Take a step in a column of each of the rows."""
        self.steps[rows, columns] += steps
        found = self.steps[rows, columns]
        self._least[rows, columns] = np.where(found > self._lowest[rows, columns], -INFINITE, np.float32(0))
        self._most[rows, columns] = np.where(found < self._highest[rows, columns], INFINITE, np.float32(0))
        moved = steps * self._scales[rows, columns // self._block]
        self.gradients[rows] -= self._hessian[columns] * moved[:, None]
