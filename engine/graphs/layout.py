"""Which graphs make a pass, and which columns are one copy. No onnxruntime here."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.tensor_names import place_of
from engine.bundle.variant import PassShape, shape_of
from engine.errors import BundleError

Array = NDArray[np.generic]


def layer_graphs(manifest: Manifest, shape: PassShape | None) -> list[GraphSpec]:
    """The graphs of a pass without the head, in part order. BundleError when a shape has no decoder."""
    wanted = (GraphKind.LUT, GraphKind.DECODER, GraphKind.DECODER_PREFILL, GraphKind.DEFAULT)
    found = [graph for graph in manifest.graphs if graph.kind in wanted and _serves(graph, shape)]
    if not any(graph.kind is not GraphKind.LUT for graph in found):
        raise BundleError(f"the bundle has no decoder graph for {shape or 'free shapes'}")
    return sorted(found, key=lambda graph: graph.part)


def layers_of(graph: GraphSpec) -> slice:
    """The layers whose keys and values a graph gives; an empty slice for one that gives none."""
    places = [place.layer for tensor in graph.outputs if (place := place_of(tensor.name, "_out")) is not None]
    return slice(min(places), max(places) + 1) if places else slice(0, 0)


def linear_graphs(manifest: Manifest) -> list[GraphSpec]:
    """The linear graphs of a segmented bundle, in part order."""
    return sorted((graph for graph in manifest.graphs if graph.kind is GraphKind.LINEAR), key=lambda graph: graph.part)


def _serves(graph: GraphSpec, shape: PassShape | None) -> bool:
    if graph.kind is GraphKind.LUT:
        return graph.rows is None or (shape is not None and graph.rows == shape.rows)
    return shape_of(graph) == shape


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
