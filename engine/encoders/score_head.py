"""The head of a cross-encoder: from the first row of a pair of texts to its scores."""

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
    """A layer [H, H] with bias, tanh, then one [S, H] with bias."""

    dense: Float32
    dense_bias: Float32
    scores: Float32
    scores_bias: Float32

    def __call__(self, hidden: Float32) -> Float32:
        """hidden [T, H], the rows of one pair -> raw scores [S]."""
        inner = np.tanh(self.dense.astype(np.float64) @ hidden[0] + self.dense_bias)
        result: Float32 = (self.scores @ inner + self.scores_bias).astype(np.float32)
        return result


def read_score_head(folder: Path, manifest: Manifest) -> ScoreHead | None:
    """The head of a checked bundle, None where it has none. BundleError when its file cannot be read."""
    spec, hidden = encoder_of(manifest), manifest.model.hidden
    if not spec.score_head:
        return None
    numbers = read_floats(folder, manifest, spec.score_head, (score_head_floats(hidden, spec.scores),))
    sizes = np.cumsum([hidden * hidden, hidden, spec.scores * hidden])
    dense, dense_bias, scores, scores_bias = np.split(numbers, sizes)
    return ScoreHead(dense.reshape(hidden, hidden), dense_bias, scores.reshape(spec.scores, hidden), scores_bias)
