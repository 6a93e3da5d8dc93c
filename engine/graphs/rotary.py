"""Rotary tables: cos and sin of position times frequency, for any row at any position."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import RopeSpec

GROWTH = 1024


class RotaryTable:
    """Tables [positions, rotary_dim / 2], grown as positions come up.

    Angles are float32 products, as in transformers: a finer product would differ from what the model was trained on.
    """

    def __init__(self, rope: RopeSpec) -> None:
        self._frequencies = np.array(rope.inverse_frequencies, np.float32)
        self._factor = rope.factor
        half = len(self._frequencies)
        self._cos = np.empty((0, half), np.float32)
        self._sin = np.empty((0, half), np.float32)

    def fill(self, positions: NDArray[np.int32], cos: NDArray[Any], sin: NDArray[Any]) -> None:
        """Write the rows of `positions` [N] into cos and sin [N, rotary_dim / 2]."""
        highest = int(positions.max(initial=0))
        if highest >= len(self._cos):
            self._grow(highest + GROWTH)
        np.take(self._cos, positions, axis=0, out=cos)
        np.take(self._sin, positions, axis=0, out=sin)

    def _grow(self, size: int) -> None:
        angles = (np.arange(size, dtype=np.float32)[:, None] * self._frequencies).astype(np.float64)
        self._cos = (np.cos(angles) * self._factor).astype(np.float32)
        self._sin = (np.sin(angles) * self._factor).astype(np.float32)
