"""What the names of a graph's cache tensors say: side, layer and head of a past input or of a fresh output.

Legend: L = layers, K = KV heads.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphSpec

Array = NDArray[np.generic]
PAST_NAME = re.compile(r"past_(?:nativekvcache__)?(key|value)_(\d+)(?:_h(?:ead_)?(\d+))?(_in|_out)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor lies in the caches. side: 0 for keys, 1 for values; head: None for all heads of the layer."""

    side: int
    layer: int
    head: int | None = None

    def of(self, keys: Array, values: Array) -> Array:
        """The view of arrays [L, K, ...]: [K, ...], for one head [1, ...]."""
        array: Array = (keys, values)[self.side][self.layer]
        return array if self.head is None else array[self.head : self.head + 1]


def place_of(name: str, suffix: str) -> Place | None:
    """The place of past_key_<layer>_in, past_key_<layer>_h<head>_in and their kin; None for any other tensor."""
    found = PAST_NAME.fullmatch(name)
    if found is None or found[4] != suffix:
        return None
    return Place(0 if found[1] == "key" else 1, int(found[2]), int(found[3]) if found[3] else None)


def is_scatter(graphs: Iterable[GraphSpec]) -> bool:
    """Whether fresh columns are written inside the past buffers at `cache_index`, instead of joined behind them."""
    return any(tensor.name == "cache_index" for graph in graphs for tensor in graph.inputs)
