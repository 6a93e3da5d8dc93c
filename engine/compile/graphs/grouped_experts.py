"""Experts whose gate is GELU: rows sorted by expert, and a product with each expert's own matrices.

onnxruntime's operators for experts gate with silu alone on a CPU (1.31). Here each expert costs two nodes, which take
a microsecond where no row has chosen it. Shapes: N rows, E experts, k of them for a row.
"""

from collections.abc import Callable
from dataclasses import replace

from engine.compile.graphs.experts import tell_chosen
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.quantisation.methods.integer_blocks import multiply_blocks
from engine.compile.quantisation.methods.method import StoredMatrix
from engine.compile.quantisation.packed import PackedExperts
from engine.compile.quantisation.weight_file import StoredTensor
from engine.models.experts import ExpertDetails


def grouped(
    graph: GraphBuilder,
    x: str,
    outputs: str,
    packed: PackedExperts,
    details: ExpertDetails,
    activated: Callable[[str], str],
    rows: str = "",
) -> str:
    """As `experts.routed`, for shares that are the softmax of the highest outputs. activated: writes the gate's
    activation."""
    assert details.routing.is_usual and packed.choice_bias is None and packed.gate_up.bias is None
    spec, first, last = details.spec, packed.gate_up.matrix, packed.down.matrix
    apart = graph.reshape(outputs, "rows", spec.count)
    best, numbers = graph.op_many("TopK", [apart, graph.integers(spec.chosen)], 2, axis=-1)
    if rows:
        tell_chosen(graph, numbers, details, rows)
    flat = graph.reshape(numbers, "rows")
    order = _ascending(graph, flat)
    hot = graph.op("OneHot", [flat, graph.integers(spec.count), graph.integers(0, 1)])
    counts = graph.op("ReduceSum", [hot, graph.integers(0)], keepdims=0)
    of_rows = graph.op("Div", [order, graph.integers(spec.chosen)])
    taken = graph.op("Gather", [graph.reshape(x, "rows", first.inputs), of_rows])
    both = graph.reshape(_products(graph, taken, counts, first, spec.count), "rows", spec.ffn, 2)
    gate, up = graph.op_many("Split", [both, graph.integers(1, 1)], 2, axis=-1)
    inner = graph.reshape(graph.op("Mul", [activated(gate), up]), "rows", spec.ffn)
    grown = _products(graph, inner, counts, last, spec.count)
    by_row = graph.reshape(graph.op("Gather", [grown, _ascending(graph, order)]), "rows", spec.chosen, last.outputs)
    shares = graph.op("Unsqueeze", [graph.op("Softmax", [best], axis=-1), graph.integers(-1)])
    mixed = graph.op("ReduceSum", [graph.op("Mul", [by_row, shares]), graph.integers(1)], keepdims=0)
    return graph.reshape(mixed, 1, "rows", last.outputs)


def _ascending(graph: GraphBuilder, numbers: str) -> str:
    """[some] -> the places of the lowest, the second lowest and so on."""
    return graph.op_many("TopK", [numbers, graph.op("Shape", [numbers])], 2, axis=0, largest=0)[1]


def _products(graph: GraphBuilder, x: str, counts: str, matrix: StoredMatrix, experts: int) -> str:
    """x [rows, inputs], by expert, of each as many rows as counts [E] says -> [rows, outputs]."""
    pieces = graph.op_many("Split", [x, counts], experts, axis=0)
    return graph.op("Concat", [_product(graph, piece, matrix, n, experts) for n, piece in enumerate(pieces)], axis=0)


def _product(graph: GraphBuilder, x: str, matrix: StoredMatrix, expert: int, experts: int) -> str:
    parts = (matrix.weight, matrix.scales, matrix.zero_points)
    weight, scales, zeros = (part and _one(part, expert, experts) for part in parts)
    assert weight is not None
    if not matrix.block:
        return graph.op("Gemm", [x, graph.parameter(weight)], transB=1)
    blocks = matrix.inputs // matrix.block
    weight = replace(weight, dims=(matrix.outputs, blocks, matrix.block * matrix.bits // 8))
    return multiply_blocks(graph, x, replace(matrix, weight=weight, scales=scales, zero_points=zeros))


def _one(stack: StoredTensor, expert: int, experts: int) -> StoredTensor:
    part = stack.part(expert, experts)
    return replace(part, dims=part.dims[1:])
