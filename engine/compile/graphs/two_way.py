"""The graph of a decoder's layers that see both ways: texts side by side in N rows, each row over its own text's."""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from engine.bundle.encoder import HIDDEN, POSITIONS
from engine.bundle.model_spec import RopeSpec
from engine.bundle.tensors import FLOATS, IDS, MASK
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import ROWS, GraphBuilder
from engine.compile.graphs.layers import LayerWriter, Lowering, rotate_by
from engine.compile.graphs.pool import GraphPlan
from engine.compile.quantisation.packed import PackedPart
from engine.models.network import Network


def build_two_way_graph(
    plan: GraphPlan, packed: PackedPart, network: Network, lowering: Lowering, dtype: str
) -> GraphBuilder:
    """The nodes of one graph."""
    graph = GraphBuilder(dtype, plan.shape)
    writer = TwoWayWriter(graph, lowering, network)
    for name in (IDS, POSITIONS):
        graph.add_input(name, "int32", 1, ROWS)
    graph.add_input(MASK, dtype, 1, 1, ROWS, ROWS)
    assert packed.table is not None
    x = writer.normed(writer.embedded(embed(graph, IDS, packed.table)), packed.embedding_norm)
    for index, layer in enumerate(packed.layers):
        x = writer.layer(x, layer, index)
    graph.op("Identity", [writer.normed(x, packed.final_norm)], name=HIDDEN)
    graph.add_output(HIDDEN, dtype, 1, ROWS, network.spec.hidden)
    return graph


@dataclass(frozen=True, slots=True)
class TwoWayWriter(LayerWriter):
    """Layers without caches, whose rotations and windows follow from the rows' positions."""

    def turned(self, x: str, rope: RopeSpec) -> str:
        """x [1, heads, N, D], by cos and sin of the rows' own angles [1, N, rotary_dim / 2]."""
        graph = self.graph
        cos, sin = self._table("Cos", rope), self._table("Sin", rope)
        return rotate_by(graph, x, (cos, sin), self.network.spec.head_dim, rope)

    def _table(self, kind: str, rope: RopeSpec) -> str:
        graph = self.graph

        def made() -> str:
            waves = graph.constant(np.array(rope.inverse_frequencies, np.float32).reshape(1, 1, -1))
            angles = graph.op("Mul", [graph.op("Unsqueeze", [self._places(), graph.integers(-1)]), waves])
            return graph.op("Mul", [graph.op(kind, [angles]), graph.real(rope.factor)])

        return graph.once(f"{kind} {rope.inverse_frequencies}", made)

    def _places(self) -> str:
        """Positions as floats [1, N]."""
        graph = self.graph
        return graph.once("places", lambda: graph.op("Cast", [POSITIONS], to=TensorProto.FLOAT))

    def visible(self, index: int) -> str:
        """The mask [1, 1, N, N], in which rows further off than half of the window are hidden too."""
        graph, window = self.graph, self.network.spec.attention_of(index).window

        def banded() -> str:
            rows, columns = (graph.op("Unsqueeze", [self._places(), graph.integers(axis)]) for axis in (2, 1))
            distance = graph.op("Abs", [graph.op("Sub", [rows, columns])])
            is_far = graph.op("Greater", [distance, graph.real(window // 2)])
            return graph.op("Where", [is_far, graph.real(FLOATS[str(graph.dtype)]), MASK])

        return graph.once(f"window {window}", banded) if window else MASK
