"""From the hidden states of a text's rows to its vector. Sums in double precision, rounded once."""

import numpy as np
from numpy.typing import NDArray

from engine.bundle.pooling import PoolingKind

Float32 = NDArray[np.float32]


def pooled(hidden: Float32, kind: PoolingKind) -> Float32:
    """hidden [T, H], the rows of one text -> [H], of whatever length."""
    if kind is PoolingKind.MEAN:
        return np.asarray(hidden.mean(axis=0, dtype=np.float64), np.float32)
    row: Float32 = hidden[0 if kind is PoolingKind.CLS else -1]
    return row
