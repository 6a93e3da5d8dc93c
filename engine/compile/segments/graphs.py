"""The graphs of a segmented bundle. Shapes: N rows, H query heads on K key heads of D numbers each.

Every node costs some microseconds on a pass of one row, so rows keep rank 3 and heads are never transposed.
"""

from dataclasses import dataclass

from engine.bundle.lora import LoraModule
from engine.bundle.recurrent_forms import GATE_IN, GATE_OUT
from engine.compile.embedding import embed
from engine.compile.graph_builder import COLUMNS, CONTRIB, LOGIT_ROWS, ROWS, GraphBuilder
from engine.compile.layers import LayerWriter
from engine.compile.linear import linear
from engine.compile.lora import OUTPUT, QKV, LoraPaths
from engine.compile.lowering import COS_INPUT, FUSED, SIN_INPUT, rotate_rows
from engine.compile.packed import PackedLayer, PackedPart
from engine.compile.segments.recurrent import recurrent_output, start_recurrence
from engine.compile.weight_file import StoredTensor
from engine.models.network import Network

DTYPE = "float32"
IDS, HIDDEN_IN, HIDDEN_OUT, ATTENDED, LOGITS = "input_ids", "hidden_in", "hidden_out", "attended", "logits"
QUERY, KEY, VALUE = "query", "key", "value"


@dataclass(frozen=True, slots=True)
class LinearWriter:
    """Writes one linear graph: the end of one layer and the start of the next."""

    graph: GraphBuilder
    layers: LayerWriter
    network: Network

    def finish_layer(self, rows: str, packed: PackedLayer, name: str = "") -> str:
        """Declares hidden_in [1, N, hidden] and what the layer's mixer gave; what the layer gives [1, N, hidden]."""
        graph, layers = self.graph, self.layers
        graph.add_input(HIDDEN_IN, DTYPE, 1, rows, self.network.spec.hidden)
        mixed = self._attended(rows) if packed.recurrence is None else recurrent_output(layers, rows, packed.recurrence)
        x = graph.op("Add", [HIDDEN_IN, layers.project(mixed, packed.output, OUTPUT)])
        grown = layers.feed_forward(layers.norm(x, graph.parameter(packed.ffn_norm)), packed)
        return graph.op("Add", [x, grown], name=name)

    def _attended(self, rows: str) -> str:
        """attended [1, N, H * D], times the sigmoid of its gate where there is one."""
        graph, width = self.graph, self.network.query_width
        graph.add_input(ATTENDED, DTYPE, 1, rows, width)
        if not self.network.spec.has_output_gate:
            return ATTENDED
        graph.add_input(GATE_IN, DTYPE, 1, rows, width)
        return graph.op("Mul", [ATTENDED, graph.op("Sigmoid", [GATE_IN])])

    def start_layer(self, x: str, packed: PackedLayer) -> None:
        """x [1, N, hidden] -> what the layer's mixer takes: attention query [1, N, H * D], key and value [1, N, K * D],
        normed and rotated."""
        graph, network, spec = self.graph, self.network, self.network.spec
        normed = self.layers.norm(x, graph.parameter(packed.attention_norm))
        stacked = self.layers.project(normed, packed.qkv, QKV)
        if packed.recurrence is not None:
            start_recurrence(self.layers, normed, stacked, packed.recurrence)
            return
        half = spec.rope.rotary_dim // 2
        graph.add_input(COS_INPUT, DTYPE, 1, 1, ROWS, half)
        graph.add_input(SIN_INPUT, DTYPE, 1, 1, ROWS, half)
        queries = network.query_width * (2 if spec.has_output_gate else 1)
        widths = graph.integers(queries, network.key_width, network.key_width)
        query, key, _ = graph.op_many("Split", [stacked, widths], 3, name=VALUE, axis=-1)
        if spec.has_output_gate:
            query = self._without_gate(query)
        self._turn(query, spec.heads, packed.q_norm, QUERY)
        self._turn(key, spec.kv_heads, packed.k_norm, KEY)
        for name, width in ((QUERY, network.query_width), (KEY, network.key_width), (VALUE, network.key_width)):
            graph.add_output(name, DTYPE, 1, ROWS, width)

    def _without_gate(self, query: str) -> str:
        """[1, N, H * 2 * D], for each head its query and its gate -> the queries [1, N, H * D]; the gates are given."""
        graph, spec, width = self.graph, self.network.spec, self.network.query_width
        apart = graph.reshape(query, 1, f"{ROWS}*{spec.heads}", 2 * spec.head_dim)
        sizes = graph.integers(spec.head_dim, spec.head_dim)
        query, gate = graph.op_many("Split", [apart, sizes], 2, axis=-1)
        graph.reshape(gate, 1, ROWS, width, name=GATE_OUT)
        graph.add_output(GATE_OUT, DTYPE, 1, ROWS, width)
        return graph.reshape(query, 1, ROWS, width)

    def _turn(self, x: str, heads: int, norm: StoredTensor | None, name: str) -> None:
        """[1, N, heads * D] -> the same shape under that name: each head normed (if there is a norm) and rotated."""
        graph, spec = self.graph, self.network.spec
        if norm is not None:
            apart = graph.reshape(x, 1, f"{ROWS}*{heads}", spec.head_dim)
            normed = self.layers.norm(apart, graph.parameter(norm))
            x = graph.reshape(normed, 1, ROWS, heads * spec.head_dim)
        rotate_rows(graph, x, heads, spec.head_dim, spec.rope.rotary_dim, name)


def linear_graph(packed: PackedPart, network: Network, part: int, modules: tuple[LoraModule, ...] = ()) -> GraphBuilder:
    """Part 1 embeds and starts layer 0; part i + 1 finishes layer i - 1 and starts layer i; the last gives logits.

    modules: what adapters may change.
    """
    graph, spec = GraphBuilder(DTYPE, None), network.spec
    paths = LoraPaths(graph, modules, LOGIT_ROWS if part > spec.layers else ROWS)
    writer = LinearWriter(graph, LayerWriter(graph, FUSED, network, paths), network)
    if part > spec.layers:
        _add_head(writer, packed)
        return graph
    if part == 1:
        assert packed.table is not None
        graph.add_input(IDS, "int32", 1, ROWS)
        x = graph.op("Identity", [embed(graph, IDS, packed.table)], name=HIDDEN_OUT)
    else:
        x = writer.finish_layer(ROWS, packed.layers[part - 2], HIDDEN_OUT)
    graph.add_output(HIDDEN_OUT, DTYPE, 1, ROWS, spec.hidden)
    writer.start_layer(x, packed.layers[part - 1])
    return graph


def _add_head(writer: LinearWriter, packed: PackedPart) -> None:
    graph = writer.graph
    assert packed.final_norm is not None
    x = writer.finish_layer(LOGIT_ROWS, packed.layers[-1])
    x = writer.layers.norm(x, graph.parameter(packed.final_norm))
    width = writer.network.spec.hidden
    if packed.head is not None:
        x, width = linear(graph, x, packed.head), writer.network.spec.vocab
    graph.op("Identity", [x], name=LOGITS)
    graph.add_output(LOGITS, DTYPE, 1, LOGIT_ROWS, width)


def attention_graph(network: Network) -> GraphBuilder:
    """One sequence's rows over its cache [1, K, columns, D], causal; the queries carry the scale.

    The fresh columns are written behind the past ones; presents may be bound to the memory of the pasts.
    """
    graph, spec = GraphBuilder(DTYPE, None), network.spec
    cache = (1, spec.kv_heads, COLUMNS, spec.head_dim)
    for name, width in ((QUERY, network.query_width), (KEY, network.key_width), (VALUE, network.key_width)):
        graph.add_input(name, DTYPE, 1, ROWS, width)
    graph.add_input("past_key", DTYPE, *cache)
    graph.add_input("past_value", DTYPE, *cache)
    graph.add_input("seqlens_k", "int32", 1)
    graph.add_input("total_sequence_length", "int32")
    outputs = [ATTENDED, "present_key", "present_value"]
    graph.node(
        "GroupQueryAttention",
        [tensor.name for tensor in graph.inputs],
        outputs,
        domain=CONTRIB,
        num_heads=spec.heads,
        kv_num_heads=spec.kv_heads,
        scale=1.0,
    )
    graph.add_output(ATTENDED, DTYPE, 1, ROWS, network.query_width)
    graph.add_output("present_key", DTYPE, *cache)
    graph.add_output("present_value", DTYPE, *cache)
    return graph
