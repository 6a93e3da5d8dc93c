"""The head of a cross-encoder: from the first row of a pair of texts to one number."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoder import encoder_of, score_head_floats
from engine.bundle.float_file import read_floats
from engine.bundle.manifest import Manifest

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ScoreHead:
    """A layer [H, H] with bias [H], tanh, then one [H] with bias [1]. In double precision, rounded once."""

    dense: NDArray[np.float64]
    dense_bias: NDArray[np.float64]
    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    def __call__(self, hidden: Float32) -> Float32:
        """hidden [T, H], the rows of one pair -> the raw score [1]."""
        inner = np.tanh(self.dense @ hidden[0] + self.dense_bias)
        return np.asarray(inner @ self.weight + self.bias, np.float32)


def read_score_head(folder: Path, manifest: Manifest) -> ScoreHead | None:
    """The head of a checked bundle, None where it has none. BundleError when its file cannot be read."""
    name, hidden = encoder_of(manifest).score_head, manifest.model.hidden
    if not name:
        return None
    numbers = read_floats(folder, manifest, name, (score_head_floats(hidden),)).astype(np.float64)
    dense, dense_bias, weight, bias = np.split(numbers, np.cumsum([hidden * hidden, hidden, hidden]))
    return ScoreHead(dense.reshape(hidden, hidden), dense_bias, weight, bias)
