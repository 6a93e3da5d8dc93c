"""Which graphs make a pass, which array lies behind a tensor, which columns are one copy. No onnxruntime here."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.variant import PassShape, shape_of
from engine.errors import BundleError

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


def layer_graphs(manifest: Manifest, shape: PassShape | None) -> list[GraphSpec]:
    """The graphs of a pass without the head, in part order. BundleError when a shape has no decoder."""
    wanted = (GraphKind.LUT, GraphKind.DECODER, GraphKind.DECODER_PREFILL, GraphKind.DEFAULT)
    found = [graph for graph in manifest.graphs if graph.kind in wanted and _serves(graph, shape)]
    if not any(graph.kind is not GraphKind.LUT for graph in found):
        raise BundleError(f"the bundle has no decoder graph for {shape or 'free shapes'}")
    return sorted(found, key=lambda graph: graph.part)


def _serves(graph: GraphSpec, shape: PassShape | None) -> bool:
    if graph.kind is GraphKind.LUT:
        return graph.rows is None or (shape is not None and graph.rows == shape.rows)
    return shape_of(graph) == shape


def place_of(name: str, suffix: str) -> Place | None:
    """The place of past_key_<layer>_in, past_key_<layer>_h<head>_in and their kin; None for any other tensor."""
    found = PAST_NAME.fullmatch(name)
    if found is None or found[4] != suffix:
        return None
    return Place(0 if found[1] == "key" else 1, int(found[2]), int(found[3]) if found[3] else None)


def is_scatter(graphs: Iterable[GraphSpec]) -> bool:
    """Whether fresh columns are written inside the past buffers at `cache_index`, instead of joined behind them."""
    return any(tensor.name == "cache_index" for graph in graphs for tensor in graph.inputs)


def spans(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> list[tuple[slice | Array, slice | Array]]:
    """Cut pairs of rows [M] and columns [M] into slices where both run on; short runs are one fancy index for all."""
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(columns) != 1)) + 1
    if len(breaks) >= 8:
        return [(rows, columns)]
    edges = [0, *breaks.tolist(), len(rows)]
    return [
        (slice(int(rows[a]), int(rows[b - 1]) + 1), slice(int(columns[a]), int(columns[b - 1]) + 1))
        for a, b in pairwise(edges)
    ]
