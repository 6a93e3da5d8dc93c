"""The graphs of a segmented bundle. Shapes: N rows, H query heads on K key heads of D numbers each.

Every node costs some microseconds on a pass of one row, so rows keep rank 3 and heads are never transposed.
"""

from dataclasses import dataclass

from engine.bundle.lora import LoraModule
from engine.compile.embedding import embed
from engine.compile.graph_builder import COLUMNS, CONTRIB, LOGIT_ROWS, ROWS, GraphBuilder
from engine.compile.layers import LayerWriter
from engine.compile.linear import linear
from engine.compile.lora import OUTPUT, QKV, LoraPaths
from engine.compile.lowering import COS_INPUT, FUSED, SIN_INPUT, rotate_rows
from engine.compile.packed import PackedLayer, PackedPart
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
        """Declares hidden_in [1, N, hidden] and attended [1, N, H * D]; what the layer gives [1, N, hidden]."""
        graph, layers = self.graph, self.layers
        graph.add_input(HIDDEN_IN, DTYPE, 1, rows, self.network.spec.hidden)
        graph.add_input(ATTENDED, DTYPE, 1, rows, self.network.query_width)
        x = graph.op("Add", [HIDDEN_IN, layers.project(ATTENDED, packed.output, OUTPUT)])
        grown = layers.feed_forward(layers.norm(x, graph.parameter(packed.ffn_norm)), packed)
        return graph.op("Add", [x, grown], name=name)

    def start_layer(self, x: str, packed: PackedLayer) -> None:
        """x [1, N, hidden] -> query [1, N, H * D], key and value [1, N, K * D], normed and rotated."""
        graph, network, spec = self.graph, self.network, self.network.spec
        half = spec.rope.rotary_dim // 2
        graph.add_input(COS_INPUT, DTYPE, 1, 1, ROWS, half)
        graph.add_input(SIN_INPUT, DTYPE, 1, 1, ROWS, half)
        normed = self.layers.norm(x, graph.parameter(packed.attention_norm))
        widths = graph.integers(network.query_width, network.key_width, network.key_width)
        stacked = self.layers.project(normed, packed.qkv, QKV)
        query, key, _ = graph.op_many("Split", [stacked, widths], 3, name=VALUE, axis=-1)
        self._turn(query, spec.heads, packed.q_norm, QUERY)
        self._turn(key, spec.kv_heads, packed.k_norm, KEY)
        for name, width in ((QUERY, network.query_width), (KEY, network.key_width), (VALUE, network.key_width)):
            graph.add_output(name, DTYPE, 1, ROWS, width)

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
    assert packed.head is not None and packed.final_norm is not None
    x = writer.finish_layer(LOGIT_ROWS, packed.layers[-1])
    normed = writer.layers.norm(x, graph.parameter(packed.final_norm))
    graph.op("Identity", [linear(graph, normed, packed.head)], name=LOGITS)
    graph.add_output(LOGITS, DTYPE, 1, LOGIT_ROWS, writer.network.spec.vocab)


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
