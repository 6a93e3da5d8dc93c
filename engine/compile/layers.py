"""One function for each kind of layer. Shapes: N rows, P past columns, C = P + N, G query heads on one key head."""

from dataclasses import dataclass

from engine.compile.graph_builder import CONTEXT, GraphBuilder
from engine.compile.linear import linear
from engine.compile.lowering import Lowering
from engine.compile.packed import PackedLayer
from engine.models.network import Network

MASK_INPUT = "attention_mask"


@dataclass(frozen=True, slots=True)
class LayerWriter:
    """Writes the layers of one graph."""

    graph: GraphBuilder
    lowering: Lowering
    network: Network

    def norm(self, x: str, weight: str) -> str:
        """RMS norm over the last axis."""
        return self.lowering.norm(self.graph, x, weight, self.network.norm_epsilon)

    def layer(self, x: str, packed: PackedLayer, index: int) -> str:
        """x [1, N, hidden] -> the same shape; declares the layer's KV inputs and outputs."""
        graph = self.graph
        attended = self._attention(self.norm(x, graph.parameter(packed.attention_norm)), packed, index)
        x = graph.op("Add", [x, linear(graph, attended, packed.output)])
        return graph.op("Add", [x, self._feed_forward(self.norm(x, graph.parameter(packed.ffn_norm)), packed)])

    def _feed_forward(self, x: str, packed: PackedLayer) -> str:
        graph, ffn = self.graph, self.network.spec.ffn
        gate_up = linear(graph, x, packed.gate_up)
        gate, up = graph.op_many("Split", [gate_up, graph.integers(ffn, ffn)], 2, axis=-1)
        return linear(graph, graph.op("Mul", [self.lowering.silu(graph, gate), up]), packed.down)

    def _attention(self, x: str, packed: PackedLayer, index: int) -> str:
        """x [1, N, hidden] -> the heads' outputs [1, N, heads * head_dim]."""
        graph, network, spec = self.graph, self.network, self.network.spec
        widths = graph.integers(network.query_width, network.key_width, network.key_width)
        query, key, value = graph.op_many("Split", [linear(graph, x, packed.qkv), widths], 3, axis=-1)
        query = graph.reshape(query, 1, "rows", spec.heads, spec.head_dim)
        key = graph.reshape(key, 1, "rows", spec.kv_heads, spec.head_dim)
        value = graph.reshape(value, 1, "rows", spec.kv_heads, spec.head_dim)
        if packed.q_norm is not None and packed.k_norm is not None:
            query = self.norm(query, graph.parameter(packed.q_norm))
            key = self.norm(key, graph.parameter(packed.k_norm))
        rotary_dim = spec.rope.rotary_dim
        query = self.lowering.rotate(graph, query, spec.heads, spec.head_dim, rotary_dim)
        key = self.lowering.rotate(graph, key, spec.kv_heads, spec.head_dim, rotary_dim)
        fresh_key, fresh_value = f"past_key_{index}_out", f"past_value_{index}_out"
        graph.op("Transpose", [key], name=fresh_key, perm=[2, 0, 3, 1])
        graph.op("Transpose", [value], name=fresh_value, perm=[2, 0, 1, 3])
        dtype = str(graph.dtype)
        graph.add_output(fresh_key, dtype, spec.kv_heads, 1, spec.head_dim, "rows")
        graph.add_output(fresh_value, dtype, spec.kv_heads, 1, "rows", spec.head_dim)
        mixed = self._mix(self._folded(query), fresh_key, fresh_value, index)
        mixed = graph.reshape(mixed, 1, spec.heads, "rows", spec.head_dim)
        mixed = graph.op("Transpose", [mixed], perm=[0, 2, 1, 3])
        return graph.reshape(mixed, 1, "rows", network.query_width)

    def _folded(self, query: str) -> str:
        """[1, N, heads, d] -> [n_kv, 1, G * N, d]: the group becomes rows, so keys are never repeated."""
        graph, spec = self.graph, self.network.spec
        group = spec.heads // spec.kv_heads
        query = graph.op("Transpose", [query], perm=[0, 2, 1, 3])
        return graph.reshape(query, spec.kv_heads, 1, f"rows*{group}", spec.head_dim)

    def _mix(self, query: str, fresh_key: str, fresh_value: str, index: int) -> str:
        """Softmax over past and fresh columns together; the caches themselves are never joined."""
        graph, spec = self.graph, self.network.spec
        group, dtype = spec.heads // spec.kv_heads, str(graph.dtype)
        past_key = graph.add_input(f"past_key_{index}_in", dtype, spec.kv_heads, 1, spec.head_dim, "past")
        past_value = graph.add_input(f"past_value_{index}_in", dtype, spec.kv_heads, 1, "past", spec.head_dim)
        seen = graph.op("MatMul", [query, past_key])
        fresh = graph.op("MatMul", [query, fresh_key])
        scores = graph.op("Concat", [seen, fresh], axis=-1)
        scores = graph.reshape(scores, spec.kv_heads, group, "rows", CONTEXT)
        weights = graph.op("Softmax", [graph.op("Add", [scores, MASK_INPUT])], axis=-1)
        weights = graph.reshape(weights, spec.kv_heads, 1, f"rows*{group}", CONTEXT)
        columns = graph.once("column_split", lambda: self._column_split(past_key, fresh_key))
        past_weights, fresh_weights = graph.op_many("Split", [weights, columns], 2, axis=-1)
        past_part = graph.op("MatMul", [past_weights, past_value])
        return graph.op("Add", [past_part, graph.op("MatMul", [fresh_weights, fresh_value])])

    def _column_split(self, past_key: str, fresh_key: str) -> str:
        """[P, N], numbers in a fixed graph, else taken from the caches' shapes."""
        graph = self.graph
        if graph.shape is not None:
            return graph.integers(graph.shape.past, graph.shape.rows)
        past = graph.op("Shape", [past_key], start=3, end=4)
        rows = graph.op("Shape", [fresh_key], start=3, end=4)
        return graph.op("Concat", [past, rows], axis=0)
