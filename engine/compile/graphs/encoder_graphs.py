"""The graphs of encoders: texts side by side in N rows, each row over the rows of its own text.

Of encoders proper every sum is normed after it is made (post-norm), as in the first transformer; the others have the
layers of a decoder that see both ways.
"""

from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from engine.bundle.encoder import HIDDEN, POSITIONS, TYPES
from engine.bundle.manifest import GraphKind
from engine.bundle.model_spec import RopeSpec
from engine.bundle.tensors import COS, FLOATS, IDS, MASK, SIN
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import ROWS, GraphBuilder
from engine.compile.graphs.layers import LayerWriter
from engine.compile.graphs.lowering import PLAIN_TABLES, Lowering, activated, linear, rotate_by
from engine.compile.graphs.pool import GraphPlan, PartPlan
from engine.compile.quantisation.packed import PackedEncoder, PackedNorm, PackedPart, PackedTowerLayer
from engine.models.network import Network


def encoder_part(network: Network) -> PartPlan:
    """The whole network as one part. With a decoder's layers it ends as one of an embedder does, with a last norm."""
    layers, has_end = range(network.spec.layers), network.details.sees_both_ways
    return PartPlan(1, 1, GraphKind.ENCODER, True, layers, has_end, IDS, HIDDEN)


def build_encoder_graph(
    plan: GraphPlan, packed: PackedEncoder, network: Network, lowering: Lowering, dtype: str
) -> GraphBuilder:
    """The nodes of one graph."""
    writer = _EncoderWriter(GraphBuilder(dtype, plan.shape), network, lowering)
    writer.declare_inputs()
    x = writer.embedded(packed)
    for layer in packed.layers:
        x = writer.layer(x, layer)
    writer.graph.give(x, HIDDEN, dtype, 1, ROWS, network.spec.hidden)
    return writer.graph


@dataclass(frozen=True, slots=True)
class _EncoderWriter:
    """Writes the nodes of one graph. Shapes: N rows, H heads, D numbers of a head."""

    graph: GraphBuilder
    network: Network
    lowering: Lowering

    def declare_inputs(self) -> None:
        """Ids and types, positions as numbers or as cos and sin, the mask."""
        graph, spec, dtype = self.graph, self.network.spec, str(self.graph.dtype)
        graph.add_input(IDS, "int32", 1, ROWS)
        graph.add_input(TYPES, "int32", 1, ROWS)
        if self._is_rotary:
            for name in (COS, SIN):
                graph.add_input(name, dtype, 1, 1, ROWS, spec.rope.rotary_dim // 2)
        else:
            graph.add_input(POSITIONS, "int32", 1, ROWS)
        graph.add_input(MASK, dtype, 1, 1, ROWS, ROWS)

    def embedded(self, packed: PackedEncoder) -> str:
        """The sum of tokens, types and positions, normed [1, N, hidden]."""
        graph = self.graph
        types = graph.op("Gather", [graph.parameter(packed.token_types), TYPES], axis=0)
        x = graph.op("Add", [embed(graph, IDS, packed.table), types])
        if packed.positions is not None:
            x = graph.op("Add", [x, graph.op("Gather", [graph.parameter(packed.positions), POSITIONS], axis=0)])
        return self._norm(x, packed.embedding_norm)

    def layer(self, x: str, packed: PackedTowerLayer) -> str:
        """x [1, N, hidden] -> the same shape."""
        graph, own = self.graph, packed.own
        attended = linear(graph, self._attention(linear(graph, x, own.inputs[0])), own.output)
        x = self._norm(graph.op("Add", [x, attended]), own.norm)
        encoder = self.network.encoder
        assert encoder is not None
        inner, kind = linear(graph, x, packed.up), encoder.activation
        gate, *up = graph.split(inner, *[self.network.spec.ffn] * 2) if kind.matrices == 2 else [inner]
        inner = activated(graph, gate, kind, self.lowering)
        inner = graph.op("Mul", [inner, *up]) if up else inner
        return self._norm(graph.op("Add", [x, linear(graph, inner, packed.down)]), packed.ffn_norm)

    def _attention(self, qkv: str) -> str:
        """[1, N, 3 * hidden] -> the heads' outputs [1, N, hidden]."""
        graph, hidden = self.graph, self.network.spec.hidden
        query, key, value = map(self._heads, graph.split(qkv, hidden, hidden, hidden))
        if self._is_rotary:
            size, rope = self.network.spec.head_dim, self.network.spec.rope
            query, key = (self.lowering.rotate(graph, each, size, rope, PLAIN_TABLES) for each in (query, key))
        mixed = graph.attention(query, graph.transpose(key, 0, 1, 3, 2), value, MASK)
        return graph.reshape(graph.transpose(mixed, 0, 2, 1, 3), 1, ROWS, hidden)

    def _heads(self, x: str) -> str:
        """[1, N, hidden] -> [1, H, N, D]."""
        spec = self.network.spec
        return self.graph.transpose(self.graph.reshape(x, 1, ROWS, spec.heads, spec.head_dim), 0, 2, 1, 3)

    def _norm(self, x: str, packed: PackedNorm) -> str:
        weight, bias = self.graph.parameter(packed.weight), self.graph.parameter(packed.bias)
        return self.graph.op("LayerNormalization", [x, weight, bias], axis=-1, epsilon=self.network.norm_epsilon)

    @property
    def _is_rotary(self) -> bool:
        return self.network.encoder is not None and self.network.encoder.positions is None


def build_two_way_graph(
    plan: GraphPlan, packed: PackedPart, network: Network, lowering: Lowering, dtype: str
) -> GraphBuilder:
    """The same of a decoder's layers that see both ways."""
    graph = GraphBuilder(dtype, plan.shape)
    writer = TwoWayWriter(graph, lowering, network)
    for name in (IDS, POSITIONS):
        graph.add_input(name, "int32", 1, ROWS)
    graph.add_input(MASK, dtype, 1, 1, ROWS, ROWS)
    assert packed.table is not None
    x = writer.normed(writer.embedded(embed(graph, IDS, packed.table)), packed.embedding_norm)
    for index, layer in enumerate(packed.layers):
        x = writer.layer(x, layer, index)
    graph.give(writer.normed(x, packed.final_norm), HIDDEN, dtype, 1, ROWS, network.spec.hidden)
    return graph


@dataclass(frozen=True, slots=True)
class TwoWayWriter(LayerWriter):
    """Layers without caches, whose rotations and windows follow from the rows' positions."""

    def turned(self, x: str, rope: RopeSpec) -> str:
        """x [1, heads, N, D], by cos and sin of the rows' own angles [1, N, rotary_dim / 2]."""
        tables = self._table("Cos", rope), self._table("Sin", rope)
        return rotate_by(self.graph, x, tables, self.network.spec.head_dim, rope)

    def _table(self, kind: str, rope: RopeSpec) -> str:
        graph = self.graph

        def made() -> str:
            waves = graph.constant(np.array(rope.inverse_frequencies, np.float32).reshape(1, 1, -1))
            angles = graph.op("Mul", [graph.op("Unsqueeze", [self._places(), graph.integers(-1)]), waves])
            return graph.op("Mul", [graph.op(kind, [angles]), graph.real(rope.factor)])

        return graph.once(f"{kind} {rope.inverse_frequencies}", made)

    def _places(self) -> str:
        """Positions as floats [1, N]."""
        return self.graph.once("places", lambda: self.graph.op("Cast", [POSITIONS], to=TensorProto.FLOAT))

    def visible(self, index: int) -> str:
        """The mask [1, 1, N, N], in which rows further off than half of the window are hidden too."""
        graph, window = self.graph, self.network.spec.attention_of(index).window

        def banded() -> str:
            rows, columns = (graph.op("Unsqueeze", [self._places(), graph.integers(axis)]) for axis in (2, 1))
            distance = graph.op("Abs", [graph.op("Sub", [rows, columns])])
            is_far = graph.op("Greater", [distance, graph.real(window // 2)])
            return graph.op("Where", [is_far, graph.real(FLOATS[str(graph.dtype)]), MASK])

        return graph.once(f"window {window}", banded) if window else MASK
