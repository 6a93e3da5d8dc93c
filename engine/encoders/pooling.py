"""From the hidden states of a text's rows to its vector. Sums in double precision, rounded once."""

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoder_spec import Pooling

Float32 = NDArray[np.float32]


def pooled(hidden: Float32, pooling: Pooling, normalize: bool) -> Float32:
    """hidden [T, H], the rows of one text -> [H], of length 1 if asked for; a vector of zeros stays one."""
    match pooling:
        case Pooling.MEAN:
            vector = hidden.mean(axis=0, dtype=np.float64)
        case Pooling.CLS:
            vector = hidden[0].astype(np.float64)
        case Pooling.LAST:
            vector = hidden[-1].astype(np.float64)
    if normalize:
        vector /= np.linalg.norm(vector) or 1.0
    return vector.astype(np.float32)
