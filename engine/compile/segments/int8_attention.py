"""The attention graphs of int8 caches. Shapes: N rows, H query heads on K key heads of D numbers each.

The operator's int8 kernel is fast for few rows and slow for many: many attend in float over what the codes stand for.
"""

from onnx import TensorProto

from engine.bundle.kv_scales import ROUNDED
from engine.bundle.segments import ATTENTION, ATTENTION_CHUNK
from engine.compile.graph_builder import COLUMNS, CONTRIB, ROWS, GraphBuilder
from engine.compile.segments.graphs import DTYPE, KEY, QUERY, VALUE
from engine.models.network import Network

LOWEST, HIGHEST = -128, 127
LENGTHS = ("seqlens_k", "total_sequence_length")


def int8_attention_graphs(network: Network) -> dict[str, GraphBuilder]:
    """Both graphs by name."""
    return {ATTENTION: _in_place(network), ATTENTION_CHUNK: _chunk(network)}


def _add_inputs(graph: GraphBuilder, network: Network) -> None:
    spec = network.spec
    for name, width in ((QUERY, network.query_width), (KEY, network.key_width), (VALUE, network.key_width)):
        graph.add_input(name, DTYPE, 1, ROWS, width)
    for side in (KEY, VALUE):
        graph.add_input(f"past_{side}", ROUNDED, 1, spec.kv_heads, COLUMNS, spec.head_dim)
    graph.add_input(LENGTHS[0], "int32", 1)
    graph.add_input(LENGTHS[1], "int32")
    for side in (KEY, VALUE):
        graph.add_input(f"{side}_scale", DTYPE, 1, spec.kv_heads, 1, spec.head_dim)


def _in_place(network: Network) -> GraphBuilder:
    """The operator rounds the fresh rows and writes them behind the past, which may be the presents' own memory."""
    graph, spec = GraphBuilder(DTYPE, None), network.spec
    _add_inputs(graph, network)
    inputs = [QUERY, KEY, VALUE, "past_key", "past_value", *LENGTHS, *[""] * 5, "key_scale", "value_scale"]
    sides = {f"{side}_quant_type": "PER_CHANNEL" for side in ("k", "v")}
    presents = [f"present_{side}" for side in (KEY, VALUE)]
    _attend(graph, network, inputs, "attended", presents, kv_cache_bit_width=8, **sides)
    graph.add_output("attended", DTYPE, 1, ROWS, network.query_width)
    for name in presents:
        graph.add_output(name, ROUNDED, 1, spec.kv_heads, COLUMNS, spec.head_dim)
    return graph


def _chunk(network: Network) -> GraphBuilder:
    """Fresh rows are rounded first and attend to what their own codes stand for, as later rows will.

    So it makes no difference beyond rounding how a prompt is cut into chunks. Scales are multiplied into queries and
    into what comes out: that is less than multiplying the past with them.
    """
    graph = GraphBuilder(DTYPE, None)
    _add_inputs(graph, network)
    rows = graph.op("Shape", [QUERY], start=1, end=2)
    total = graph.op("Cast", [graph.reshape(LENGTHS[1], 1)], to=TensorProto.INT64)
    past = graph.op("Sub", [total, rows])
    fresh, pasts = [], []
    for side in (KEY, VALUE):
        seen = graph.op("Slice", [f"past_{side}", graph.integers(0), past, graph.integers(2)])
        pasts.append(_floats(graph, seen))
        fresh.append(_floats(graph, _codes(graph, network, side)))
    query = graph.op("Mul", [QUERY, _of_queries(graph, network, KEY)])
    attended = _attend(graph, network, [query, *fresh, *pasts, *LENGTHS], "", ["all_keys", "all_values"])
    graph.op("Mul", [attended, _of_queries(graph, network, VALUE)], name="attended")
    graph.add_output("attended", DTYPE, 1, ROWS, network.query_width)
    for side in (KEY, VALUE):
        graph.add_output(f"{side}_codes", ROUNDED, 1, ROWS, network.key_width)
    return graph


def _floats(graph: GraphBuilder, codes: str) -> str:
    """Codes as numbers of their own size."""
    return graph.op("DequantizeLinear", [codes, graph.real(1.0)])


def _of_queries(graph: GraphBuilder, network: Network, side: str) -> str:
    """The scales of a side [1, 1, H * D]: of each query head those of its KV head."""
    spec = network.spec
    shared = graph.integers(1, spec.kv_heads, spec.heads // spec.kv_heads, spec.head_dim)
    return graph.reshape(graph.op("Expand", [f"{side}_scale", shared]), 1, 1, network.query_width)


def _codes(graph: GraphBuilder, network: Network, side: str) -> str:
    """int8 [1, N, K * D] of a side's floats as the operator rounds: times the inverse, to the nearest even, clamped."""
    # The Reshape lies between, lest onnxruntime makes one division of inverse and product, which rounds otherwise.
    inverse = graph.reshape(graph.op("Div", [graph.real(1.0), f"{side}_scale"]), 1, 1, network.key_width)
    nearest = graph.op("Round", [graph.op("Mul", [side, inverse])])
    clamped = graph.op("Clip", [nearest, graph.real(LOWEST), graph.real(HIGHEST)])
    return graph.op("Cast", [clamped], name=f"{side}_codes", to=TensorProto.INT8)


def _attend(
    graph: GraphBuilder, network: Network, inputs: list[str], name: str, presents: list[str], **attributes: str | int
) -> str:
    outputs = [name or "summed", *presents]
    spec = network.spec
    heads = {"num_heads": spec.heads, "kv_num_heads": spec.kv_heads}
    return graph.node("GroupQueryAttention", inputs, outputs, CONTRIB, scale=1.0, **heads, **attributes)[0]
