"""Rotary tables: cos and sin of position times frequency, for any row at any position."""

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array, Encoding
from engine.bundle.manifest import RopeSpec

GROWTH = 1024


class RotaryTable:
    """One encoded table [positions, rotary_dim / 2] of cos or sin, grown as positions come up.

    Angles are float32 products, as in transformers: a finer product would differ from what the model was trained on.
    """

    def __init__(self, rope: RopeSpec, is_cos: bool, encoding: Encoding) -> None:
        self._frequencies = np.array(rope.inverse_frequencies, np.float32)
        self._factor = rope.factor
        self._function = np.cos if is_cos else np.sin
        self._encoding = encoding
        self._table: Array = np.empty((0, len(self._frequencies)), encoding.dtype)

    def fill(self, positions: NDArray[np.int32], out: Array) -> None:
        """Write the rows of `positions` [N] into out [N, rotary_dim / 2]."""
        highest = int(positions.max(initial=0))
        if highest >= len(self._table):
            self._grow(highest + GROWTH)
        np.take(self._table, positions, axis=0, out=out, mode="clip")

    def _grow(self, size: int) -> None:
        angles = (np.arange(size, dtype=np.float32)[:, None] * self._frequencies).astype(np.float64)
        self._table = self._encoding.encode(self._function(angles) * self._factor)
