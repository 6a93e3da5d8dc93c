"""Attention under a mask, in two graphs: over columns that several sequences share, and over a sequence's own.

Both are one softmax: the first gives what its columns come to and the logarithm of their weight, the second takes that
as one more column. The queries carry the scale. Shapes: N rows, G query heads on each of K key heads of D numbers.
Codes of int8 caches are attended to as numbers of their own size: the scales of keys are multiplied into the queries,
those of values into what comes out.
"""

from engine.bundle.kv_scales import ROUNDED
from engine.bundle.segments import BASE_ATTENTION, MASKED_ATTENTION
from engine.compile.graph_builder import COLUMNS, CONTRIB, ROWS, Dim, GraphBuilder
from engine.models.network import Network

DTYPE = "float32"
QUERY, KEYS, VALUES, MASK, ATTENDED = "query", "keys", "values", "mask", "attended"
BASE_ATTENDED, BASE_WEIGHT = "base_attended", "base_weight"
KEY_SCALE, VALUE_SCALE = "key_scale", "value_scale"


def masked_attention_graphs(network: Network, kv_dtype: str) -> dict[str, GraphBuilder]:
    """Both graphs by name. kv_dtype: of the caches, float32 or int8."""
    return {BASE_ATTENTION: base_graph(network, kv_dtype), MASKED_ATTENTION: masked_graph(network, kv_dtype)}


def base_graph(network: Network, kv_dtype: str) -> GraphBuilder:
    """Rows of any sequences over the columns that they share: base_attended [N, K, G, D], base_weight [N, K, G, 1].

    The query heads of a key head become rows, so that every key is read once.
    """
    spec, graph = network.spec, GraphBuilder(DTYPE, None)
    group = spec.heads // spec.kv_heads
    _add_inputs(graph, network, kv_dtype, (1, spec.kv_heads), (ROWS, 1))
    scaled, keys, values = _operands(graph, kv_dtype)
    folded, apart = graph.integers(1, spec.kv_heads, -1, 0), graph.integers(spec.kv_heads, -1, group, 0)
    turn = [1, 0, 2, 3]
    query = graph.op("Reshape", [graph.op("Transpose", [scaled], perm=turn), folded])
    scores = graph.op("Reshape", [graph.op("FusedMatMul", [query, keys], CONTRIB, transB=1), apart])
    scores = graph.op("Add", [scores, MASK])  # [K, N, G, columns]
    weights = graph.op("Softmax", [scores], axis=-1)
    mixed = graph.op("MatMul", [graph.op("Reshape", [weights, folded]), values])
    _outward(graph, kv_dtype, graph.op("Reshape", [mixed, apart]), turn, BASE_ATTENDED)
    # log(sum(exp(scores))) by way of the highest score: faster than ReduceLogSumExp, half of the time of all the rest.
    highest, share = (graph.op("ReduceMax", [x, graph.integers(-1)], keepdims=1) for x in (scores, weights))
    total = graph.op("Sub", [highest, graph.op("Log", [share])])
    graph.op("Transpose", [total], name=BASE_WEIGHT, perm=turn)
    graph.add_output(BASE_ATTENDED, DTYPE, *_rows(network, spec.head_dim))
    graph.add_output(BASE_WEIGHT, DTYPE, *_rows(network, 1))
    return graph


def masked_graph(network: Network, kv_dtype: str) -> GraphBuilder:
    """Rows of one sequence over its own columns and what base_graph gave for those before: attended [N, K, G, D].

    Mostly a row alone: the heads stay apart, because the product of one row with a matrix needs no copy of the matrix.
    """
    spec, graph = network.spec, GraphBuilder(DTYPE, None)
    _add_inputs(graph, network, kv_dtype, (spec.kv_heads, 1), (ROWS,))
    graph.add_input(BASE_ATTENDED, DTYPE, *_rows(network, spec.head_dim))
    graph.add_input(BASE_WEIGHT, DTYPE, *_rows(network, 1))
    inward, outward = [1, 2, 0, 3], [2, 0, 1, 3]
    scaled, keys, values = _operands(graph, kv_dtype)
    query, base = (graph.op("Transpose", [x], perm=inward) for x in (scaled, BASE_WEIGHT))
    scores = graph.op("Add", [graph.op("FusedMatMul", [query, keys], CONTRIB, transB=1), MASK])
    weights = graph.op("Softmax", [graph.op("Concat", [scores, base], axis=-1)], axis=-1)  # [K, G, N, columns + 1]
    first, last, end, axis = (graph.integers(number) for number in (0, -1, 2**31 - 1, 3))
    mixed = graph.op("MatMul", [graph.op("Slice", [weights, first, last, axis]), values])
    share = graph.op("Transpose", [graph.op("Slice", [weights, last, end, axis])], perm=outward)
    before = graph.op("Mul", [share, BASE_ATTENDED])
    graph.op("Add", [_outward(graph, kv_dtype, mixed, outward), before], name=ATTENDED)
    graph.add_output(ATTENDED, DTYPE, *_rows(network, spec.head_dim))
    return graph


def _rows(network: Network, width: int) -> tuple[Dim, ...]:
    spec = network.spec
    return (ROWS, spec.kv_heads, spec.heads // spec.kv_heads, width)


def _add_inputs(
    graph: GraphBuilder, network: Network, kv_dtype: str, heads: tuple[Dim, ...], mask: tuple[Dim, ...]
) -> None:
    """Declares query [N, K, G, D], keys and values [*heads, columns, D], a mask added to scores, scales of codes."""
    spec = network.spec
    graph.add_input(QUERY, DTYPE, *_rows(network, spec.head_dim))
    for name in (KEYS, VALUES):
        graph.add_input(name, kv_dtype, *heads, COLUMNS, spec.head_dim)
    graph.add_input(MASK, DTYPE, *mask, COLUMNS)
    if kv_dtype == ROUNDED:
        for name in (KEY_SCALE, VALUE_SCALE):
            graph.add_input(name, DTYPE, 1, spec.kv_heads, 1, spec.head_dim)


def _operands(graph: GraphBuilder, kv_dtype: str) -> tuple[str, str, str]:
    """Queries [N, K, G, D], keys and values as floats of which the products are scores, and what comes out."""
    if kv_dtype != ROUNDED:
        return QUERY, KEYS, VALUES
    keys, values = (graph.op("DequantizeLinear", [codes, graph.real(1.0)]) for codes in (KEYS, VALUES))
    return graph.op("Mul", [QUERY, KEY_SCALE]), keys, values


def _outward(graph: GraphBuilder, kv_dtype: str, mixed: str, perm: list[int], name: str = "") -> str:
    """Mixed values as rows [N, K, G, D], of codes with their scales."""
    if kv_dtype != ROUNDED:
        return graph.op("Transpose", [mixed], name=name, perm=perm)
    return graph.op("Mul", [graph.op("Transpose", [mixed], perm=perm), VALUE_SCALE], name=name)
