"""The likeliest tokens of a row, found on the row as it is stored: a larger code is a larger logit.

Shapes: V = vocabulary, B = BLOCK, m = V // B.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Codes = NDArray[Any]

GROUP = 8  # ids j, j + m, j + 2m, ... are a group: their maxima are one vector operation for all groups
BLOCK = 4  # groups, in the same way


def top_ids(values: Codes, count: int) -> Ids:
    """Ids of the `count` largest of values [V], largest first, lowest id first among equals.

    The count-th largest maximum of a block bounds the count-th largest value from below, so few values are looked at.
    """
    return top_and_others(values, count)[0]


def top_and_others(values: Codes, count: int) -> tuple[Ids, Codes]:
    """The same; and [V // GROUP + V % GROUP] codes of which GROUP tokens each, the top ones left out, are at most one.

    No token is left out, and of a code no more than the last of the top ones.
    """
    groups = maxima(values, GROUP)
    if count >= len(values):
        ids = by_value(values, np.arange(len(values)))[:count]
        return ids, np.minimum(groups, values[ids[-1]])
    found, held = _at_least(values, groups, count)
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
    found = values[ids]
    falling = np.negative(found) if found.dtype.kind == "f" else np.invert(found)  # no integer overflows
    return ids[np.argsort(falling, kind="stable")]
