"""Which experts the rows of a step chose, counted.

Legend: X = layers with experts, N = rows, k = experts of a row.
"""

import numpy as np
from numpy.typing import NDArray

from engine.bundle.model_spec import ModelSpec


class RoutingCount:
    """chosen: experts over all rows and layers so far, those of padding rows among them. read: different experts of
    each layer and step, added up: what of the weights the steps read."""

    def __init__(self, model: ModelSpec, most: int) -> None:
        self.chosen = self.read = 0
        self._spec = spec = model.experts
        self._last = model.layers - 1  # its experts follow the rows that need logits
        shape = (len(spec.layers), most, spec.chosen) if spec else (0, 0, 0)
        self._numbers: NDArray[np.int64] = np.zeros(shape, np.int64)

    def rows(self, layer: int, rows: int) -> NDArray[np.int64]:
        """Where the graph that ends a layer with experts writes their numbers [1, N, k]."""
        assert self._spec is not None
        place = self._spec.layers.index(layer)
        return self._numbers[place : place + 1, :rows]

    def count(self, rows: int, logit_rows: int) -> None:
        """Take in a step of a model with experts."""
        spec = self._spec
        assert spec is not None
        ends_with = spec.layers[-1] == self._last
        inner = self._numbers[: len(spec.layers) - ends_with, :rows]
        parts = [inner + np.arange(len(inner))[:, None, None] * spec.count]
        if ends_with:
            parts.append(self._numbers[-1, :logit_rows] + len(inner) * spec.count)
        numbers = np.concatenate([part.reshape(-1) for part in parts])
        self.chosen += len(numbers)
        self.read += int(np.count_nonzero(np.bincount(numbers)))
