"""How far apart two predictions of the same tokens are, position by position, in nats. Logits [T, vocab]. Pure."""

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def log_softmax(logits: Float32) -> Float64:
    """Log-probabilities [T, vocab]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def divergences(expected: Float64, found: Float64) -> Float64:
    """KL(expected || found) [T] of log-probabilities."""
    result: Float64 = np.sum(np.exp(expected) * (expected - found), axis=1)
    return result
