"""Several streams as nodes (AltUp), and the path of low rank beside attention (LAuReL).

Shapes: N rows, S streams; between layers they lie side by side, [1, N, S * hidden].
"""

from collections.abc import Callable

import numpy as np

from engine.compile.graphs.graph_builder import ROWS, GraphBuilder
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import linear
from engine.compile.quantisation.packed import PackedLinear, PackedStreams

_LEAST = 1e-5  # of a mean square that is divided by


def first_stream(layers: LayerWriter, streams: str) -> str:
    """Side by side -> the first [1, N, hidden]; itself where it is the only one."""
    spec = layers.network.spec
    return streams if spec.streams == 1 else layers.graph.slice(streams, 0, spec.hidden, -1)


def spread(layers: LayerWriter, x: str, packed: PackedLinear) -> str:
    """x [1, N, hidden], embedded -> streams side by side: x and others that are as large."""
    graph, spec = layers.graph, layers.network.spec
    others = graph.reshape(linear(graph, x, packed), ROWS, spec.streams - 1, spec.hidden)
    target = graph.reshape(_magnitude(graph, x), ROWS, 1, 1)
    alike = graph.op("Mul", [others, graph.op("Div", [target, _magnitude(graph, others, _LEAST)])])
    return _side_by_side(layers, graph.op("Concat", [graph.reshape(x, ROWS, 1, spec.hidden), alike], axis=1))


def predicted(layers: LayerWriter, streams: str, packed: PackedStreams, name: str) -> str:
    """Streams side by side -> what a layer takes them for, under that name."""
    graph, count = layers.graph, layers.network.spec.streams
    shares = linear(graph, _shares(layers, first_stream(layers, streams), packed), packed.prediction)
    mixed = graph.op("MatMul", [graph.reshape(shares, ROWS, count, count), _apart(layers, streams)])
    return _side_by_side(layers, mixed, name)


def with_path(layers: LayerWriter, x: str, normed: str, packed: PackedStreams) -> str:
    """x [1, N, hidden] behind attention, which took `normed` -> both paths together."""
    graph = layers.graph
    narrow = linear(graph, linear(graph, normed, packed.left), packed.right)
    path = graph.op("Add", [normed, layers.normed(narrow, packed.path_norm)])
    return graph.op("Mul", [graph.op("Add", [x, path]), graph.real(0.5**0.5)])


def corrected(layers: LayerWriter, streams: str, x: str, packed: PackedStreams, of_inputs: Callable[[str], str]) -> str:
    """Predicted streams and x [1, N, hidden], which a layer made of the first -> streams side by side. of_inputs: what
    a layer adds to all but the first, of the first [1, N, hidden]."""
    graph, spec = layers.graph, layers.network.spec
    shares = graph.reshape(linear(graph, _shares(layers, x, packed), packed.correction), ROWS, spec.streams, 1)
    change = graph.reshape(graph.op("Sub", [x, first_stream(layers, streams)]), ROWS, 1, spec.hidden)
    apart = graph.op("Add", [_apart(layers, streams), graph.op("Mul", [change, shares])])
    first = first_stream(layers, _side_by_side(layers, apart))
    grown = of_inputs(graph.op("Mul", [first, graph.parameter(packed.scale)]))
    others = graph.constant(np.array([0.0] + [1.0] * (spec.streams - 1), np.float32)[:, None])
    added = graph.op("Mul", [graph.reshape(grown, ROWS, 1, spec.hidden), others])
    return _side_by_side(layers, graph.op("Add", [apart, added]))


def merged(layers: LayerWriter, streams: str, packed: tuple[PackedLinear, ...]) -> str:
    """Streams side by side -> what the last norm takes [1, N, hidden]: the mean of all, made as large as the first."""
    graph, spec = layers.graph, layers.network.spec
    total, *others = graph.split(streams, *[spec.hidden] * spec.streams)
    target = _magnitude(graph, total)
    for other, matrix in zip(others, packed, strict=True):
        x = linear(graph, other, matrix)
        share = graph.op("Div", [target, _magnitude(graph, x, _LEAST)])
        total = graph.op("Add", [total, graph.op("Mul", [x, share])])
    return graph.op("Mul", [total, graph.real(1 / spec.streams)])


def _shares(layers: LayerWriter, x: str, packed: PackedStreams) -> str:
    """x [1, N, hidden] -> what coefficients of streams are made of [1, N, S]."""
    return layers.graph.op("Tanh", [linear(layers.graph, layers.normed(x, packed.router_norm), packed.router)])


def _magnitude(graph: GraphBuilder, x: str, least: float = 0.0) -> str:
    """The root of the mean square over the last axis."""
    square = graph.op("ReduceMean", [graph.op("Mul", [x, x]), graph.integers(-1)], keepdims=1)
    return graph.op("Sqrt", [graph.op("Max", [square, graph.real(least)]) if least else square])


def _apart(layers: LayerWriter, streams: str) -> str:
    return layers.graph.reshape(streams, ROWS, layers.network.spec.streams, layers.network.spec.hidden)


def _side_by_side(layers: LayerWriter, apart: str, name: str = "") -> str:
    return layers.graph.reshape(apart, 1, ROWS, layers.network.spec.stream_width, name=name)
