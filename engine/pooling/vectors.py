"""From what a worker gives for a text to the vector or score that a caller gets. D = numbers of a vector."""

import math

import numpy as np
from numpy.typing import NDArray

from engine.bundle.pooling import PoolingSpec, RerankKind, RerankSpec

Vector = NDArray[np.float32]


def finished(raw: bytes, spec: PoolingSpec, dimensions: int | None = None) -> Vector:
    """The vector [D] of a text, of length 1 where the model's are. raw: float32, little-endian.

    dimensions: only so many first numbers, which then have length 1 again; None = all.
    """
    vector = np.frombuffer(raw, "<f4")
    if spec.normalise:
        vector = _of_length_one(vector)
    if dimensions is not None and dimensions < len(vector):
        vector = _of_length_one(vector[:dimensions])
    return vector


def score(raw: bytes, spec: RerankSpec) -> float:
    """How relevant a document is, 0 to 1. raw: the logits of yes and no, or the one number of a pair."""
    numbers = np.frombuffer(raw, "<f4").astype(np.float64)
    margin = float(numbers[0] - numbers[1] if spec.kind is RerankKind.JUDGE else numbers[0])
    return 1 / (1 + math.exp(-margin)) if margin >= 0 else math.exp(margin) / (1 + math.exp(margin))


def _of_length_one(vector: Vector) -> Vector:
    length = np.linalg.norm(vector.astype(np.float64))
    return (vector / length).astype("<f4") if length else vector
