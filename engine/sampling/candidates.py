"""The likeliest tokens of a row, found on the row as it is stored: a larger code is a larger logit.

Shapes: V = vocabulary, B = BLOCK, m = V // B.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Codes = NDArray[Any]

BLOCK = 32  # ids j, j + m, j + 2m, ... are a block: their maxima are one vector operation for all blocks


def top_ids(values: Codes, count: int) -> Ids:
    """Ids of the `count` largest of values [V], largest first, lowest id first among equals.

    The count-th largest maximum of a block bounds the count-th largest value from below, so few values are looked at.
    """
    if count >= len(values):
        return by_value(values, np.arange(len(values)))[:count]
    return by_value(values, _at_least(values, count))[:count]


def _at_least(values: Codes, count: int) -> Ids:
    """Ids, ascending, of values [V] among which the `count` largest are; count < V."""
    size, blocks = len(values), len(values) // BLOCK
    if blocks < 4 * count:
        bound = np.partition(values, size - count)[size - count]
        return np.flatnonzero(values >= bound)
    square = values[: BLOCK * blocks].reshape(BLOCK, blocks)
    maxima = square.max(axis=0)
    bound = np.partition(maxima, blocks - count)[blocks - count]
    able = np.flatnonzero(maxima >= bound)
    lines, places = np.nonzero(square[:, able] >= bound)
    rest = np.flatnonzero(values[BLOCK * blocks :] >= bound) + BLOCK * blocks
    ids: Ids = np.concatenate([lines * blocks + able[places], rest])
    ids.sort()
    return ids


def by_value(values: Codes, ids: Ids) -> Ids:
    """Ascending ids, largest value first; equals keep their order."""
    found = values[ids]
    falling = np.negative(found) if found.dtype.kind == "f" else np.invert(found)  # no integer overflows
    return ids[np.argsort(falling, kind="stable")]
