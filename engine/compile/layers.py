"""One function for each kind of layer. Shapes: N rows, P past columns, C = P + N, G query heads on one key head."""

from dataclasses import dataclass

from engine.compile.graph_builder import CONTEXT, Dim, GraphBuilder
from engine.compile.linear import linear
from engine.compile.lora import DOWN, GATE_UP, LoraPaths
from engine.compile.lowering import COS_INPUT, Lowering
from engine.compile.packed import PackedLayer, PackedLinear
from engine.compile.weight_file import StoredTensor
from engine.models.network import Network

MASK_INPUT = "attention_mask"


@dataclass(frozen=True, slots=True)
class LayerWriter:
    """Writes the layers of one graph."""

    graph: GraphBuilder
    lowering: Lowering
    network: Network
    paths: LoraPaths | None = None

    def project(self, x: str, packed: PackedLinear, name: str) -> str:
        """x [1, N, inputs] -> [1, N, outputs], with the paths of adapters where the graph has them."""
        product = linear(self.graph, x, packed)
        return product if self.paths is None else self.paths.add(x, product, name)

    def norm(self, x: str, weight: str) -> str:
        """RMS norm over the last axis."""
        return self.lowering.norm(self.graph, x, weight, self.network.norm_epsilon)

    def layer(self, x: str, packed: PackedLayer, index: int) -> str:
        """x [1, N, hidden] -> the same shape; declares the layer's KV inputs and outputs."""
        graph = self.graph
        attended = self._attention(self.norm(x, graph.parameter(packed.attention_norm)), packed, index)
        x = graph.op("Add", [x, linear(graph, attended, packed.output)])
        return graph.op("Add", [x, self.feed_forward(self.norm(x, graph.parameter(packed.ffn_norm)), packed)])

    def feed_forward(self, x: str, packed: PackedLayer) -> str:
        """x [1, N, hidden], normed -> the same shape: silu(gate) * up, projected down."""
        graph, ffn = self.graph, self.network.spec.ffn
        gate_up = self.project(x, packed.gate_up, GATE_UP)
        gate, up = graph.op_many("Split", [gate_up, graph.integers(ffn, ffn)], 2, axis=-1)
        return self.project(graph.op("Mul", [self.lowering.silu(graph, gate), up]), packed.down, DOWN)

    def _attention(self, x: str, packed: PackedLayer, index: int) -> str:
        """x [1, N, hidden] -> the heads' outputs [1, N, heads * head_dim]."""
        graph, network, spec = self.graph, self.network, self.network.spec
        widths = graph.integers(network.query_width, network.key_width, network.key_width)
        query, key, value = graph.op_many("Split", [linear(graph, x, packed.qkv), widths], 3, axis=-1)
        query = self.rotated_heads(query, spec.heads, packed.q_norm)
        key = self.rotated_heads(key, spec.kv_heads, packed.k_norm)
        value = graph.reshape(value, 1, "rows", spec.kv_heads, spec.head_dim)
        fresh_key, fresh_value = f"past_key_{index}_out", f"past_value_{index}_out"
        graph.op("Transpose", [key], name=fresh_key, perm=[1, 0, 3, 2])
        graph.op("Transpose", [value], name=fresh_value, perm=[2, 0, 1, 3])
        query = graph.op("Reshape", [query, self._folded_shape("query_shape", spec.kv_heads, spec.head_dim)])
        if graph.shape is not None and not graph.shape.past:
            mixed = self._mix_alone(query, fresh_key, fresh_value)
        else:
            dtype = str(graph.dtype)
            graph.add_output(fresh_key, dtype, spec.kv_heads, 1, spec.head_dim, "rows")
            graph.add_output(fresh_value, dtype, spec.kv_heads, 1, "rows", spec.head_dim)
            mixed = self._mix(query, fresh_key, fresh_value, index)
        mixed = graph.reshape(mixed, 1, spec.heads, "rows", spec.head_dim)
        mixed = graph.op("Transpose", [mixed], perm=[0, 2, 1, 3])
        return graph.reshape(mixed, 1, "rows", network.query_width)

    def rotated_heads(self, x: str, heads: int, norm: StoredTensor | None) -> str:
        """[1, N, heads * d] -> [1, heads, N, d], each head normed (if there is a norm) and rotated."""
        graph, spec = self.graph, self.network.spec
        if norm is not None:
            # Rank 3: the HTP's norm of a tensor of rank 4 is garbage for many shapes (QNN 2.51).
            x = graph.reshape(x, 1, f"rows*{heads}", spec.head_dim)
            x = self.norm(x, graph.parameter(norm))
        x = graph.reshape(x, 1, "rows", heads, spec.head_dim)
        x = graph.op("Transpose", [x], perm=[0, 2, 1, 3])
        return self.lowering.rotate(graph, x, spec.head_dim, spec.rope.rotary_dim)

    def _folded_shape(self, key: str, first: int, last: Dim) -> str:
        """[first, 1, G * N, last], so that a key head is multiplied once for its whole group; one row alone may be
        spread to [first, G, 1, last] instead. Free graphs choose when they run."""
        graph, spec = self.graph, self.network.spec
        group = spec.heads // spec.kv_heads
        folded = graph.dims(first, 1, f"rows*{group}", last)
        spread = graph.dims(first, group, 1, last)
        if not self.lowering.spreads_single_row:
            return folded
        if graph.shape is not None:
            return spread if graph.shape.rows == 1 else folded

        def is_single() -> str:
            return graph.op("Equal", [graph.op("Shape", [COS_INPUT], start=2, end=3), graph.integers(1)])

        return graph.once(key, lambda: graph.op("Where", [graph.once("is_single", is_single), spread, folded]))

    def _folded_mask(self) -> str:
        """The mask [1, 1, N, C] repeated for the group, in the layout of the scores."""
        graph, spec = self.graph, self.network.spec
        repeated = graph.op("Expand", [MASK_INPUT, graph.integers(1, spec.heads // spec.kv_heads, 1, 1)])
        return graph.op("Reshape", [repeated, self._folded_shape("mask_shape", 1, CONTEXT)])

    def _mix(self, query: str, fresh_key: str, fresh_value: str, index: int) -> str:
        """Softmax over past and fresh columns together; the caches themselves are never joined."""
        graph, spec, dtype = self.graph, self.network.spec, str(self.graph.dtype)
        past_key = graph.add_input(f"past_key_{index}_in", dtype, spec.kv_heads, 1, spec.head_dim, "past")
        past_value = graph.add_input(f"past_value_{index}_in", dtype, spec.kv_heads, 1, "past", spec.head_dim)
        seen = graph.op("MatMul", [query, past_key])
        fresh = graph.op("MatMul", [query, fresh_key])
        scores = graph.op("Concat", [seen, fresh], axis=-1)
        mask = graph.once("folded_mask", self._folded_mask)
        weights = graph.op("Softmax", [graph.op("Add", [scores, mask])], axis=-1)
        columns = graph.once("column_split", lambda: self._column_split(past_key, fresh_key))
        past_weights, fresh_weights = graph.op_many("Split", [weights, columns], 2, axis=-1)
        past_part = graph.op("MatMul", [past_weights, past_value])
        return graph.op("Add", [past_part, graph.op("MatMul", [fresh_weights, fresh_value])])

    def _mix_alone(self, query: str, key: str, value: str) -> str:
        """Softmax over the rows' own columns: a graph without a past keeps nothing."""
        graph = self.graph
        mask = graph.once("folded_mask", self._folded_mask)
        scores = graph.op("Add", [graph.op("MatMul", [query, key]), mask])
        return graph.op("MatMul", [graph.op("Softmax", [scores], axis=-1), value])

    def _column_split(self, past_key: str, fresh_key: str) -> str:
        """[P, N], numbers in a fixed graph, else taken from the caches' shapes."""
        graph = self.graph
        if graph.shape is not None:
            return graph.integers(graph.shape.past, graph.shape.rows)
        past = graph.op("Shape", [past_key], start=3, end=4)
        rows = graph.op("Shape", [fresh_key], start=3, end=4)
        return graph.op("Concat", [past, rows], axis=0)
