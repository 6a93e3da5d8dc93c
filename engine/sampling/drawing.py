"""One token drawn from a row: temperature -> top-k -> softmax -> top-p -> min-p -> draw.
Candidates are found on the row as it is stored; only they become real numbers, and only their weights are float64. What
needs every token (the sum of all weights) is one float32 operation after the other over the row. A larger code is a
larger logit. A weight is exp((logit - largest) / temperature), so the largest is 1. Shapes: V = vocabulary, K =
candidates, B = BLOCK, m = V // B."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.bundle.tensors import Encoding
from engine.request import SamplingParams

Ids = NDArray[np.int64]
Codes = NDArray[Any]

GROUP = 8  # ids j, j + m, j + 2m, ... are a group: their maxima are one vector operation for all groups
BLOCK = 4  # groups, in the same way


def top_ids(values: Codes, count: int) -> Ids:
    """Ids of the `count` largest of values [V], largest first, lowest id first among equals.
    The count-th largest maximum of a block bounds the count-th largest value from below, so few values are looked
    at."""
    return top_and_others(values, count)[0]


def top_and_others(values: Codes, count: int) -> tuple[Ids, Codes]:
    """The same; and [V // GROUP + V % GROUP] codes of which GROUP tokens each, the top ones left out, are at most one.
    No token is left out, and of a code no more than the last of the top ones."""
    groups = maxima(values, GROUP)
    if count < len(values):
        found, held = _at_least(values, groups, count)
    else:
        found, held = np.arange(len(values)), np.arange(len(groups))
    ids = by_value(values, found)[:count]
    groups[held] = np.minimum(groups[held], values[ids[-1]])
    return ids, groups


def maxima(values: Codes, size: int) -> Codes:
    """Of values [n] the largest of j, j + m, j + 2m, ... for all j < m = n // size; behind them the last n % size."""
    step = len(values) // size
    found: Codes = values[: size * step].reshape(size, step).max(axis=0)
    return np.concatenate([found, values[size * step :]]) if len(values) % size else found


def _at_least(values: Codes, groups: Codes, count: int) -> tuple[Ids, Ids]:
    """Ids, ascending, of values [V] among which the `count` largest are, and the groups they are in; count < V."""
    blocks = maxima(groups, BLOCK)
    if len(blocks) < 4 * count:
        bound = np.partition(values, len(values) - count)[len(values) - count]
        held = np.flatnonzero(groups >= bound)
        return np.flatnonzero(values >= bound), held
    bound = np.partition(blocks, len(blocks) - count)[len(blocks) - count]
    held = _members(groups, BLOCK, np.flatnonzero(blocks >= bound), bound)
    ids = _members(values, GROUP, held, bound)
    ids.sort()
    return ids, held


def _members(values: Codes, size: int, holders: Ids, bound: np.generic) -> Ids:
    """Indices of values [n] that are no less than `bound`, all of them in the maxima at `holders`."""
    step = len(values) // size
    whole, single = holders[holders < step], holders[holders >= step] + (size - 1) * step
    index: Ids = np.concatenate([(whole + step * np.arange(size)[:, None]).ravel(), single])
    found: Ids = index[values[index] >= bound]
    return found


def by_value(values: Codes, ids: Ids) -> Ids:
    """Ascending ids, largest value first; equals keep their order."""
    falls = np.negative if values.dtype.kind == "f" else np.invert  # no integer overflows
    return ids[np.argsort(falls(values[ids]), kind="stable")]


Weights = NDArray[np.float64]
Rounded = NDArray[np.float32]

FIRST_CANDIDATES = 256
MOST_CANDIDATES = 2048  # of a nucleus that is found by sorting
HOPELESS = 16  # candidates that hold less than this part of top-p: more of them would not do either
RUN = 512  # ids whose weights are one sum
PIECE = 32 * RUN
FINEST = 65_535  # classes of weight into which a flat row is sorted
DEEPEST = 40.0  # logits over temperature below the largest, beyond which all tokens are one class


@dataclass(frozen=True, slots=True)
class CodedRow:
    """One row's values [V] as they are stored, and how. Floats may hold -infinity: a token that must not be drawn."""

    values: Codes
    encoding: Encoding

    def scaled(self, ids: Ids, temperature: float) -> Rounded:
        return np.asarray(self.encoding.decode(self.values[ids]) * np.float32(1.0 / temperature))

    def relative(self, values: Codes, peak: float, temperature: float) -> Rounded:
        """Logits over temperature less `peak`, all of them as they are stored; rounded."""
        relative: Rounded = np.subtract(values, values.dtype.type(peak), dtype=np.float32)
        relative *= np.float32(self.encoding.scale / temperature)
        return relative

    def most_beyond(self, others: Codes, peak: float, temperature: float) -> float:
        """The most that all tokens but the likeliest can weigh, of which GROUP each are at most one of `others`.
        It takes a fifth of the time that the sum of all weights takes."""
        weights = self.relative(others, peak, temperature)
        return GROUP * float(np.exp(weights, out=weights).sum())

    def run_sums(self, temperature: float) -> Weights:
        """Sums of the weights of RUN ids each, in the order of ids. Pieces of the row stay in a processor's cache."""
        peak = self.values.max()
        sums: list[Rounded] = []
        for start in range(0, len(self.values), PIECE):
            weights = self.relative(self.values[start : start + PIECE], peak, temperature)
            np.exp(weights, out=weights)
            sums.append(np.add.reduceat(weights, np.arange(0, len(weights), RUN)))
        return np.concatenate(sums).astype(np.float64)


def draw(row: CodedRow, params: SamplingParams, number: float) -> int:
    """The token at the place `number`, in [0, 1), of the distribution. The row's largest value is finite."""
    if params.top_k:
        return _among(row, top_ids(row.values, params.top_k), params, number)
    if params.top_p >= 1.0 and params.min_p == 0.0:
        return _among_all(row, params, number)
    ids, others = top_and_others(row.values, FIRST_CANDIDATES)
    if params.top_p < 1.0 and (bounded := _nucleus_by_bounds(row, ids, others, params)):
        return _among(row, ids[:bounded], params, number)
    total = float(row.run_sums(params.temperature).sum()) if params.top_p < 1.0 else 1.0
    while True:
        shares = _exact(row.scaled(ids, params.temperature)) / total
        done_by_p = params.top_p < 1.0 and shares.sum() >= params.top_p
        done_by_min = params.min_p > 0.0 and shares[-1] < params.min_p * shares[0]
        if done_by_p or done_by_min or len(ids) == len(row.values):
            return _among(row, ids[: nucleus(shares, params.top_p)], params, number)
        if len(ids) == MOST_CANDIDATES or (params.top_p < 1.0 and shares.sum() < params.top_p / HOPELESS):
            break
        ids = top_ids(row.values, MOST_CANDIDATES)
    return _FlatRow(row, params).draw(number)


def nucleus(weights: Weights, top_p: float) -> int:
    return len(weights) if top_p >= 1.0 else int(np.searchsorted(np.cumsum(weights), top_p, side="left")) + 1


def _nucleus_by_bounds(row: CodedRow, ids: Ids, others: Codes, params: SamplingParams) -> int:
    """How many candidates [K] reach top_p, if the most and the least that all others can weigh agree; else 0."""
    reached = np.cumsum(_exact(row.scaled(ids, params.temperature)))
    least = most = float(reached[-1])
    if len(ids) < len(row.values):
        most += row.most_beyond(others, row.values[ids[0]], params.temperature)
    fewest, largest = np.searchsorted(reached, [params.top_p * least, params.top_p * most], side="left")
    return int(fewest) + 1 if fewest == largest < len(ids) else 0


def _among(row: CodedRow, ids: Ids, params: SamplingParams, number: float) -> int:
    """Draw from candidates [K], likeliest first, after what is left of the cuts."""
    weights = _exact(row.scaled(ids, params.temperature))
    return int(ids[_place(weights[: _cut(weights, params)], number)])


def _cut(weights: Weights, params: SamplingParams) -> int:
    """Candidates left after top-p (of what top-k left) and min-p; at least one."""
    count = len(weights)
    if params.top_k and params.top_p < 1.0:
        count = min(count, nucleus(weights / weights.sum(), params.top_p))
    if params.min_p > 0.0:
        count = min(count, int(np.searchsorted(-weights, -params.min_p, side="right")))
    return max(1, count)


def _exact(scaled: Rounded) -> Weights:
    return np.asarray(np.exp((scaled - scaled[0]).astype(np.float64)))


def _place(weights: Weights, number: float) -> int:
    """Inverse of the cumulative distribution: the index whose share of the weights holds `number`."""
    cumulative = np.cumsum(weights)
    place = int(np.searchsorted(cumulative, number * cumulative[-1], side="right"))
    # Rounding may lead beyond the end, where ids that must not be drawn may lie.
    return place if place < len(weights) else int(np.flatnonzero(weights)[-1])


def _among_all(row: CodedRow, params: SamplingParams, number: float) -> int:
    """Draw without any cut, in the order of ids: first the run of ids that holds the place, then the id in it."""
    sums = row.run_sums(params.temperature)
    run = _place(sums, number)
    before = sums[:run].sum()
    share = (number * sums.sum() - before) / sums[run]
    first = run * RUN
    found = np.exp(_relative(row, np.arange(first, min(first + RUN, len(row.values))), params.temperature))
    return first + _place(found, min(1.0, max(0.0, share)))


def _relative(row: CodedRow, ids: Ids, temperature: float) -> Weights:
    """Logits over temperature against the row's largest."""
    largest = row.scaled(np.array([row.values.argmax()]), temperature)
    return np.asarray((row.scaled(ids, temperature) - largest).astype(np.float64))


class _FlatRow:
    """A row whose nucleus is a large part of the vocabulary: its tokens are counted by classes of weight, not sorted.
    Classes are in falling order of weight. Only in those that a cut or the draw falls into, tokens are sorted."""

    def __init__(self, row: CodedRow, params: SamplingParams) -> None:
        self._row = row
        self._params = params
        relative = row.relative(row.values, row.values.max(), params.temperature)
        classes = relative * np.float32(-FINEST / DEEPEST)
        self._classes = np.minimum(classes, np.float32(FINEST), out=classes).astype(np.uint16)
        self._reached = np.cumsum(np.bincount(self._classes, np.exp(relative)))  # by the end of each class

    def draw(self, number: float) -> int:
        place = number * self._mass_left()
        ids, reached = self._class_at(min(int(np.searchsorted(self._reached, place, "right")), len(self._reached) - 1))
        index = int(np.searchsorted(reached, place, side="right"))
        # Rounding may lead beyond the end, where ids that must not be drawn may lie.
        return int(ids[index if index < len(ids) else np.searchsorted(reached, reached[-1], side="left")])

    def _mass_left(self) -> float:
        """Sum of the weights that top-p and min-p leave."""
        left, params = float(self._reached[-1]), self._params
        if params.top_p < 1.0:
            goal = params.top_p * left
            _, reached = self._class_at(int(np.searchsorted(self._reached, goal, "left")))
            left = float(reached[min(int(np.searchsorted(reached, goal, side="left")), len(reached) - 1)])
        if params.min_p > 0.0:
            last = min(int(-np.log(params.min_p) * FINEST / DEEPEST), len(self._reached) - 1)
            ids, _ = self._class_at(last)
            weights = np.exp(_relative(self._row, ids, params.temperature))
            left = min(left, self._before(last) + float(weights[weights >= params.min_p].sum()))
        return left

    def _before(self, number: int) -> float:
        return float(self._reached[number - 1]) if number else 0.0

    def _class_at(self, number: int) -> tuple[Ids, Weights]:
        """Ids of a class, likeliest first, and the weight reached with each of them."""
        ids = by_value(self._row.values, np.flatnonzero(self._classes == number))
        weights = np.exp(_relative(self._row, ids, self._params.temperature))
        return ids, self._before(number) + np.cumsum(weights)
