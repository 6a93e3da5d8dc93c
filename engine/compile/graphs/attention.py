"""The attention graphs of each kind of caches, and two under a mask: over columns that sequences share, and their own.

The operator's int8 kernel is fast for few rows and slow for many: many attend in float over what the codes stand for.
It has no fast kernel for float16: such caches are widened to float32 first, a layer of one sequence at a time.

Both graphs under a mask are one softmax: the first gives what its columns come to and the logarithm of their weight,
the second takes that as one more column. The queries carry the scale. Codes of int8 caches are attended to as numbers
of their own size: the scales of keys are multiplied into the queries, those of values into what comes out.
Shapes: N rows, H = K * G query heads, G on each of K key heads of D numbers.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from onnx import TensorProto

from engine.bundle import segments
from engine.bundle.model_spec import PLAIN_ATTENTION, HeadForm, LayerAttention
from engine.bundle.weight_files import ROUNDED
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.graphs.segments import ATTENDED, DTYPE, KEY, QUERY, VALUE
from engine.models.network import Network

LOWEST, HIGHEST = -128, 127
OPERANDS = (QUERY, KEY, VALUE, "past_key", "past_value")
LENGTHS = ("seqlens_k", "total_sequence_length")
KEY_SCALE, VALUE_SCALE = "key_scale", "value_scale"
SCALES_AT = 12  # among the operator's inputs
KEYS, VALUES, MASK = "keys", "values", "mask"
TURN = (1, 0, 2, 3)  # rows before key heads, and back
BACK = (2, 0, 1, 3)  # rows behind the query heads of a key head to the front


def attention_graphs(network: Network, kv_dtype: str) -> dict[str, GraphBuilder]:
    """The graphs of every form of layers by name; with caches of int8 or float16 layers have one form of heads."""
    found: dict[str, GraphBuilder] = {}
    for form in dict.fromkeys(network.spec.layer_forms):
        if segments.ATTENTION in segments.ATTENTION_KINDS[kv_dtype]:
            found[segments.attention_name(segments.ATTENTION, form)] = attention_graph(network, form, kv_dtype)
        if segments.ATTENTION_CHUNK in segments.ATTENTION_KINDS[kv_dtype]:
            found[segments.attention_name(segments.ATTENTION_CHUNK, form)] = _chunk(network, form, kv_dtype)
    grouped = {} if network.details.attention_softcap else segments.grouped_names(network.spec, kv_dtype)
    return found | {name: grouped_graph(network, form, kv_dtype) for name, form in grouped.items()}


def grouped_graph(network: Network, form: LayerAttention = PLAIN_ATTENTION, kv_dtype: str = DTYPE) -> GraphBuilder:
    """Few rows of one sequence over its float cache, the fresh columns in it already; the mask is added to scores. The
    query heads of a key head become rows of one product, so that every key is read once: the operator reads it for each
    of them. In return all columns are computed with, also those behind the last row."""
    graph, heads = GraphBuilder(DTYPE, None), network.spec.heads_of(form)
    graph.declare(*segments.grouped_forms(network.spec, kv_dtype, form))
    keys, values = (_floats(graph, name, kv_dtype) for name in OPERANDS[3:])
    query = graph.reshape(QUERY, -1, heads.kv_heads, heads.heads // heads.kv_heads, heads.head_dim)
    _, _, mixed = _folded_attention(graph, heads, query, keys, values)
    graph.reshape(graph.transpose(mixed, *TURN), 1, -1, heads.query_width, name=ATTENDED)
    return graph


def _folded_attention(graph: GraphBuilder, heads: HeadForm, query: str, keys: str, values: str) -> tuple[str, str, str]:
    """Queries [N, K, G, D] over keys and values [1, K, columns, D] -> masked scores and weights [K, N, G, columns], and
    what comes out [K, N, G, D]. The query heads of a key head are rows of one product."""
    folded = graph.integers(1, heads.kv_heads, -1, 0)
    apart = graph.integers(heads.kv_heads, -1, heads.heads // heads.kv_heads, 0)
    rows = graph.op("Reshape", [graph.transpose(query, *TURN), folded])
    products = graph.op("FusedMatMul", [rows, keys], CONTRIB, transB=1)
    scores = graph.op("Add", [graph.op("Reshape", [products, apart]), MASK])
    weights = graph.op("Softmax", [scores], axis=-1)
    mixed = graph.op("MatMul", [graph.op("Reshape", [weights, folded]), values])
    return scores, weights, graph.op("Reshape", [mixed, apart])


def attention_graph(network: Network, form: LayerAttention = PLAIN_ATTENTION, kv_dtype: str = DTYPE) -> GraphBuilder:
    """One sequence's rows over its cache [1, K, columns, D], causal; the queries carry the scale. form: of the layers.
    The fresh columns are written behind the past ones, rounded where the cache is; presents may be bound to the memory
    of the pasts."""
    graph = GraphBuilder(DTYPE, None)
    graph.declare(*segments.attention_forms(network.spec, kv_dtype, form))
    outputs = [ATTENDED, *(f"present_{side}" for side in (KEY, VALUE))]
    _attend(graph, network, form, [*OPERANDS], outputs, has_scales=kv_dtype == ROUNDED)
    return graph


def _chunk(network: Network, form: LayerAttention, kv_dtype: str) -> GraphBuilder:
    """Fresh rows are rounded first and attend to what is stored of them, as later rows will. So it makes no difference
    beyond rounding how a prompt is cut into chunks. Scales of int8 codes are multiplied into queries and into what
    comes out: that is less than multiplying the past with them."""
    graph, is_scaled = GraphBuilder(DTYPE, None), kv_dtype == ROUNDED
    graph.declare(*segments.chunk_forms(network.spec, kv_dtype))
    rows = graph.op("Shape", [QUERY], start=1, end=2)
    total = graph.op("Cast", [graph.reshape(LENGTHS[1], 1)], to=TensorProto.INT64)
    past = graph.op("Sub", [total, rows])
    fresh, pasts = [], []
    for side in (KEY, VALUE):
        seen = graph.op("Slice", [f"past_{side}", graph.integers(0), past, graph.integers(2)])
        pasts.append(_floats(graph, seen, kv_dtype))
        if is_scaled:
            stored = _codes(graph, network, side)
        else:  # floats do not pass the range of halves: the runtime sees to that
            stored = graph.op("Cast", [side], name=f"{side}_codes", to=TensorProto.FLOAT16)
        fresh.append(_floats(graph, stored, kv_dtype))
    query = graph.op("Mul", [QUERY, _of_queries(graph, network, KEY)]) if is_scaled else QUERY
    outputs = ["summed" if is_scaled else ATTENDED, "all_keys", "all_values"]
    plain = msgspec.structs.replace(PLAIN_ATTENTION, window=form.window)  # as `chunk_forms` declares the heads
    _attend(graph, network, plain, [query, *fresh, *pasts], outputs)
    if is_scaled:
        graph.op("Mul", ["summed", _of_queries(graph, network, VALUE)], name=ATTENDED)
    return graph


def _floats(graph: GraphBuilder, stored: str, kv_dtype: str) -> str:
    """What caches hold as float32, int8 codes as numbers of their own size."""
    if kv_dtype == ROUNDED:
        return graph.op("DequantizeLinear", [stored, graph.real(1.0)])
    return graph.op("Cast", [stored], to=TensorProto.FLOAT) if kv_dtype == segments.HALF else stored


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
    graph: GraphBuilder,
    network: Network,
    form: LayerAttention,
    operands: list[str],
    outputs: list[str],
    has_scales: bool = False,
) -> None:
    """The operator with the layers' window, which includes a row's own column, cap and sinks."""
    heads, cap = network.spec.heads_of(form), network.details.attention_softcap
    inputs = [*operands, *LENGTHS, *([*[""] * 4, segments.SINKS] if network.spec.has_sinks else [])]
    attributes: dict[str, Any] = {"num_heads": heads.heads, "kv_num_heads": heads.kv_heads, "scale": 1.0}
    attributes |= {name: limit for name, limit in (("local_window_size", form.window), ("softcap", cap)) if limit}
    if has_scales:
        inputs += [*[""] * (SCALES_AT - len(inputs)), KEY_SCALE, VALUE_SCALE]
        attributes |= {"kv_cache_bit_width": 8, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    graph.node("GroupQueryAttention", inputs, outputs, CONTRIB, **attributes)


BASE_ATTENDED, BASE_WEIGHT = "base_attended", "base_weight"


def masked_attention_graphs(network: Network, kv_dtype: str) -> dict[str, GraphBuilder]:
    """All of them by name; none for sinks, unlike caches or capped scores, and for layers with windows only where rows
    of images see each other both ways. kv_dtype: of the caches."""
    spec, write = network.spec, {segments.BASE_ATTENTION: base_graph, segments.MASKED_ATTENTION: masked_graph}
    if network.details.attention_softcap or spec.has_sinks or spec.has_unlike_caches:
        return {}
    if any(spec.layer_windows) and not network.images_both_ways:
        return {}
    return {name: write[name](network, kv_dtype) for name in segments.masked_names(spec)}


def base_graph(network: Network, kv_dtype: str) -> GraphBuilder:
    """Rows of any sequences over the columns that they share: base_attended [N, K, G, D], base_weight [N, K, G, 1]. The
    query heads of a key head become rows, so that every key is read once."""
    graph = GraphBuilder(DTYPE, None)
    graph.declare(*segments.base_forms(network.spec, kv_dtype))
    heads = network.spec.heads_of(PLAIN_ATTENTION)
    scores, weights, mixed = _folded_attention(graph, heads, *_operands(graph, kv_dtype))
    _outward(graph, kv_dtype, mixed, TURN, BASE_ATTENDED)
    # log(sum(exp(scores))) by way of the highest score: faster than ReduceLogSumExp, half of the time of all the rest.
    highest, share = (graph.op("ReduceMax", [x, graph.integers(-1)], keepdims=1) for x in (scores, weights))
    total = graph.op("Sub", [highest, graph.op("Log", [share])])
    graph.transpose(total, *TURN, name=BASE_WEIGHT)
    return graph


def masked_graph(network: Network, kv_dtype: str) -> GraphBuilder:
    """Rows of one sequence over its own columns and what base_graph gave for those before: attended [N, K, G, D].

    Mostly a row alone: the heads stay apart, because the product of one row with a matrix needs no copy of the matrix.
    """
    graph = GraphBuilder(DTYPE, None)
    graph.declare(*segments.masked_forms(network.spec, kv_dtype))
    scaled, keys, values = _operands(graph, kv_dtype)
    query, base = (graph.transpose(x, 1, 2, 0, 3) for x in (scaled, BASE_WEIGHT))
    scores = graph.op("Add", [graph.op("FusedMatMul", [query, keys], CONTRIB, transB=1), MASK])
    weights = graph.op("Softmax", [graph.op("Concat", [scores, base], axis=-1)], axis=-1)  # [K, G, N, columns + 1]
    first, last, end, axis = (graph.integers(number) for number in (0, -1, 2**31 - 1, 3))
    mixed = graph.op("MatMul", [graph.op("Slice", [weights, first, last, axis]), values])
    share = graph.transpose(graph.op("Slice", [weights, last, end, axis]), *BACK)
    before = graph.op("Mul", [share, BASE_ATTENDED])
    graph.op("Add", [_outward(graph, kv_dtype, mixed, BACK), before], name=ATTENDED)
    return graph


def _operands(graph: GraphBuilder, kv_dtype: str) -> tuple[str, str, str]:
    """Queries [N, K, G, D], keys and values as floats of which the products are scores, and what comes out."""
    keys, values = (_floats(graph, stored, kv_dtype) for stored in (KEYS, VALUES))
    return graph.op("Mul", [QUERY, KEY_SCALE]) if kv_dtype == ROUNDED else QUERY, keys, values


def _outward(graph: GraphBuilder, kv_dtype: str, mixed: str, perm: Sequence[int], name: str = "") -> str:
    """Mixed values as rows [N, K, G, D], of codes with their scales."""
    if kv_dtype != ROUNDED:
        return graph.transpose(mixed, *perm, name=name)
    return graph.op("Mul", [graph.transpose(mixed, *perm), VALUE_SCALE], name=name)
