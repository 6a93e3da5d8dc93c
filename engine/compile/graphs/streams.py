"""Several streams as nodes (AltUp), and the path of low rank beside attention (LAuReL).

Shapes: N rows, S streams; between layers they lie side by side, [1, N, S * hidden].
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.compile.graphs.graph_builder import ROWS
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import linear
from engine.compile.quantisation.packed import PackedLinear, PackedStreams

_LEAST = 1e-5  # of a mean square that is divided by


@dataclass(frozen=True, slots=True)
class StreamWriter(LayerWriter):
    """Also writes what goes from stream to stream."""

    def first_stream(self, streams: str) -> str:
        """Side by side -> the first [1, N, hidden]; itself where it is the only one."""
        spec = self.network.spec
        return streams if spec.streams == 1 else self.graph.slice(streams, 0, spec.hidden, -1)

    def spread(self, x: str, packed: PackedLinear) -> str:
        """x [1, N, hidden], embedded -> streams side by side: x and others that are as large."""
        graph, spec = self.graph, self.network.spec
        others = graph.reshape(linear(graph, x, packed), ROWS, spec.streams - 1, spec.hidden)
        target = graph.reshape(self._magnitude(x), ROWS, 1, 1)
        alike = graph.op("Mul", [others, graph.op("Div", [target, self._magnitude(others, _LEAST)])])
        return self._side_by_side(graph.op("Concat", [graph.reshape(x, ROWS, 1, spec.hidden), alike], axis=1))

    def predicted(self, streams: str, packed: PackedStreams, name: str) -> str:
        """Streams side by side -> what a layer takes them for, under that name."""
        graph, count = self.graph, self.network.spec.streams
        shares = linear(graph, self._shares(self.first_stream(streams), packed), packed.prediction)
        mixed = graph.op("MatMul", [graph.reshape(shares, ROWS, count, count), self._apart(streams)])
        return self._side_by_side(mixed, name)

    def with_path(self, x: str, normed: str, packed: PackedStreams) -> str:
        """x [1, N, hidden] behind attention, which took `normed` -> both paths together."""
        graph = self.graph
        narrow = linear(graph, linear(graph, normed, packed.left), packed.right)
        path = graph.op("Add", [normed, self.normed(narrow, packed.path_norm)])
        return graph.op("Mul", [graph.op("Add", [x, path]), graph.real(0.5**0.5)])

    def corrected(self, streams: str, x: str, packed: PackedStreams, of_inputs: Callable[[str], str]) -> str:
        """Predicted streams and x [1, N, hidden], which a layer made of the first -> streams side by side. of_inputs:
        what a layer adds to all but the first, of the first [1, N, hidden]."""
        graph, spec = self.graph, self.network.spec
        shares = graph.reshape(linear(graph, self._shares(x, packed), packed.correction), ROWS, spec.streams, 1)
        change = graph.reshape(graph.op("Sub", [x, self.first_stream(streams)]), ROWS, 1, spec.hidden)
        apart = graph.op("Add", [self._apart(streams), graph.op("Mul", [change, shares])])
        first = self.first_stream(self._side_by_side(apart))
        grown = of_inputs(graph.op("Mul", [first, graph.parameter(packed.scale)]))
        others = graph.constant(np.array([0.0] + [1.0] * (spec.streams - 1), np.float32)[:, None])
        added = graph.op("Mul", [graph.reshape(grown, ROWS, 1, spec.hidden), others])
        return self._side_by_side(graph.op("Add", [apart, added]))

    def merged(self, streams: str, packed: tuple[PackedLinear, ...]) -> str:
        """Streams side by side -> what the last norm takes [1, N, hidden]: the mean of all, as large as the first."""
        graph, spec = self.graph, self.network.spec
        total, *others = graph.split(streams, *[spec.hidden] * spec.streams)
        target = self._magnitude(total)
        for other, matrix in zip(others, packed, strict=True):
            x = linear(graph, other, matrix)
            share = graph.op("Div", [target, self._magnitude(x, _LEAST)])
            total = graph.op("Add", [total, graph.op("Mul", [x, share])])
        return graph.op("Mul", [total, graph.real(1 / spec.streams)])

    def _shares(self, x: str, packed: PackedStreams) -> str:
        """x [1, N, hidden] -> what coefficients of streams are made of [1, N, S]."""
        return self.graph.op("Tanh", [linear(self.graph, self.normed(x, packed.router_norm), packed.router)])

    def _magnitude(self, x: str, least: float = 0.0) -> str:
        """The root of the mean square over the last axis."""
        graph = self.graph
        square = graph.op("ReduceMean", [graph.op("Mul", [x, x]), graph.integers(-1)], keepdims=1)
        return graph.op("Sqrt", [graph.op("Max", [square, graph.real(least)]) if least else square])

    def _apart(self, streams: str) -> str:
        return self.graph.reshape(streams, ROWS, self.network.spec.streams, self.network.spec.hidden)

    def _side_by_side(self, apart: str, name: str = "") -> str:
        return self.graph.reshape(apart, 1, ROWS, self.network.spec.stream_width, name=name)
