"""Attention under a mask, in two graphs: over columns that several sequences share, and over a sequence's own.

Both are one softmax: the first gives what its columns come to and the logarithm of their weight, the second takes that
as one more column. The queries carry the scale. Shapes: N rows, G query heads on each of K key heads of D numbers.
"""

from engine.compile.graph_builder import COLUMNS, CONTRIB, ROWS, Dim, GraphBuilder
from engine.models.network import Network

DTYPE = "float32"
QUERY, KEYS, VALUES, MASK, ATTENDED = "query", "keys", "values", "mask", "attended"
BASE_ATTENDED, BASE_WEIGHT = "base_attended", "base_weight"


def base_graph(network: Network) -> GraphBuilder:
    """Rows of any sequences over the columns that they share: base_attended [N, K, G, D], base_weight [N, K, G, 1].

    The query heads of a key head become rows, so that every key is read once.
    """
    spec, graph = network.spec, GraphBuilder(DTYPE, None)
    group = spec.heads // spec.kv_heads
    _add_inputs(graph, network, 1, spec.kv_heads, ROWS, 1)
    folded, apart = graph.integers(1, spec.kv_heads, -1, 0), graph.integers(spec.kv_heads, -1, group, 0)
    turn = [1, 0, 2, 3]
    query = graph.op("Reshape", [graph.op("Transpose", [QUERY], perm=turn), folded])
    scores = graph.op("Reshape", [graph.op("FusedMatMul", [query, KEYS], CONTRIB, transB=1), apart])
    scores = graph.op("Add", [scores, MASK])  # [K, N, G, columns]
    weights = graph.op("Softmax", [scores], axis=-1)
    mixed = graph.op("MatMul", [graph.op("Reshape", [weights, folded]), VALUES])
    graph.op("Transpose", [graph.op("Reshape", [mixed, apart])], name=BASE_ATTENDED, perm=turn)
    # log(sum(exp(scores))) by way of the highest score: faster than ReduceLogSumExp, half of the time of all the rest.
    highest, share = (graph.op("ReduceMax", [x, graph.integers(-1)], keepdims=1) for x in (scores, weights))
    total = graph.op("Sub", [highest, graph.op("Log", [share])])
    graph.op("Transpose", [total], name=BASE_WEIGHT, perm=turn)
    graph.add_output(BASE_ATTENDED, DTYPE, *_rows(network, spec.head_dim))
    graph.add_output(BASE_WEIGHT, DTYPE, *_rows(network, 1))
    return graph


def masked_graph(network: Network) -> GraphBuilder:
    """Rows of one sequence over its own columns and what base_graph gave for those before: attended [N, K, G, D].

    Mostly a row alone: the heads stay apart, because the product of one row with a matrix needs no copy of the matrix.
    """
    spec, graph = network.spec, GraphBuilder(DTYPE, None)
    _add_inputs(graph, network, spec.kv_heads, 1, ROWS)
    graph.add_input(BASE_ATTENDED, DTYPE, *_rows(network, spec.head_dim))
    graph.add_input(BASE_WEIGHT, DTYPE, *_rows(network, 1))
    inward, outward = [1, 2, 0, 3], [2, 0, 1, 3]
    query, base = (graph.op("Transpose", [x], perm=inward) for x in (QUERY, BASE_WEIGHT))
    scores = graph.op("Add", [graph.op("FusedMatMul", [query, KEYS], CONTRIB, transB=1), MASK])
    weights = graph.op("Softmax", [graph.op("Concat", [scores, base], axis=-1)], axis=-1)  # [K, G, N, columns + 1]
    first, last, end, axis = (graph.integers(number) for number in (0, -1, 2**31 - 1, 3))
    mixed = graph.op("MatMul", [graph.op("Slice", [weights, first, last, axis]), VALUES])
    share = graph.op("Transpose", [graph.op("Slice", [weights, last, end, axis])], perm=outward)
    before = graph.op("Mul", [share, BASE_ATTENDED])
    graph.op("Add", [graph.op("Transpose", [mixed], perm=outward), before], name=ATTENDED)
    graph.add_output(ATTENDED, DTYPE, *_rows(network, spec.head_dim))
    return graph


def _rows(network: Network, width: int) -> tuple[Dim, ...]:
    spec = network.spec
    return (ROWS, spec.kv_heads, spec.heads // spec.kv_heads, width)


def _add_inputs(graph: GraphBuilder, network: Network, outer: int, inner: int, *mask: Dim) -> None:
    """Declares query [N, K, G, D], keys and values [outer, inner, columns, D], and a mask added to scores."""
    graph.add_input(QUERY, DTYPE, *_rows(network, network.spec.head_dim))
    for name in (KEYS, VALUES):
        graph.add_input(name, DTYPE, outer, inner, COLUMNS, network.spec.head_dim)
    graph.add_input(MASK, DTYPE, *mask, COLUMNS)
