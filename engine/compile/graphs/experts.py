"""A layer's experts as nodes: which of them a row chooses, and what these make of it.

Shapes: N rows, E experts, k of them for a row. Definition: onnxruntime's contrib operators MoE and QMoE, which read
the experts that some row has chosen and no others.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.bundle.segments import EXPERTS
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.quantisation.methods.integer_blocks import multiply_blocks
from engine.compile.quantisation.methods.method import StoredMatrix
from engine.compile.quantisation.packed import PackedExperts
from engine.models.experts import ExpertDetails, GroupScore, RouterScore, Routing

UNREACHED = -1e30  # the score of an expert that must not be chosen
LEAST_SHARE = 1e-30  # whose logarithm is finite
INT8_PRODUCTS = 4  # accuracy level: rows are rounded to 8 bits in blocks, as in the other products


def routed(
    graph: GraphBuilder, x: str, outputs: str, packed: PackedExperts, details: ExpertDetails, rows: str = ""
) -> str:
    """x [1, N, hidden] -> what the chosen experts make of it, of the same shape. outputs: of the router [1, N, E].
    rows: the axis of an output `EXPERTS` [1, N, k], "" = there is none."""
    outputs = graph.reshape(outputs, "rows", details.spec.count)
    choice, scores = outputs, ""
    # The operators' own softmax is over the chosen experts; without that (normalize_routing_weights 0) QMoE takes the
    # router's outputs as shares, and MoE gives zeros where it writes over its input (onnxruntime 1.31).
    if not (details.routing.is_usual and packed.choice_bias is None):
        choice, scores = _choice(graph, outputs, packed, details.routing)
    if rows:
        tell_chosen(graph, _best(graph, choice, details.spec.chosen), details, rows)
    write = _quantised if packed.gate_up.matrix.block else _floats
    return write(graph, x, (choice, scores), packed, details)


def chosen(graph: GraphBuilder, outputs: str, packed: PackedExperts, details: ExpertDetails) -> tuple[str, str]:
    """outputs [N, E] of the router -> shares and numbers of the experts of each row, both [N, k]."""
    count = graph.integers(details.spec.chosen)
    if details.routing.is_usual and packed.choice_bias is None:
        best, numbers = graph.op_many("TopK", [outputs, count], 2, axis=-1)
        return graph.op("Softmax", [best], axis=-1), numbers
    choice, scores = _choice(graph, outputs, packed, details.routing)
    numbers = _best(graph, choice, details.spec.chosen)
    shares = graph.op("GatherElements", [scores, numbers], axis=1)
    if not details.routing.is_normalised:
        return shares, numbers
    return graph.op("Div", [shares, graph.op("ReduceSum", [shares, graph.integers(-1)], keepdims=1)]), numbers


def tell_chosen(graph: GraphBuilder, numbers: str, details: ExpertDetails, rows: str) -> None:
    """numbers [N, k] as an output."""
    graph.reshape(numbers, 1, "rows", details.spec.chosen, name=EXPERTS)
    graph.add_output(EXPERTS, "int64", 1, rows, details.spec.chosen)


def _best(graph: GraphBuilder, scores: str, count: int) -> str:
    """[.., some] -> the places of the highest [.., count]."""
    return graph.op_many("TopK", [scores, graph.integers(count)], 2, axis=-1)[1]


def _choice(graph: GraphBuilder, outputs: str, packed: PackedExperts, routing: Routing) -> tuple[str, str]:
    """What experts are chosen by, and what their shares are made of, both [N, E]."""
    is_softmax = routing.score is RouterScore.SOFTMAX
    choice = scores = graph.op("Softmax", [outputs], axis=-1) if is_softmax else graph.op("Sigmoid", [outputs])
    if packed.choice_bias is not None:
        choice = graph.op("Add", [scores, graph.parameter(packed.choice_bias)])
    if routing.kept_groups < routing.groups:
        choice = _of_kept_groups(graph, choice, packed, routing)
    return choice, scores


def _of_kept_groups(graph: GraphBuilder, choice: str, packed: PackedExperts, routing: Routing) -> str:
    size = packed.router.matrix.outputs // routing.groups
    apart = graph.reshape(choice, "rows", routing.groups, size)
    best = 1 if routing.group_score is GroupScore.BEST else 2
    highest = graph.op_many("TopK", [apart, graph.integers(best)], 2, axis=-1)[0]
    group = graph.op("ReduceSum", [highest, graph.integers(-1)], keepdims=0)
    kept = _best(graph, group, routing.kept_groups)
    far = graph.op("Expand", [graph.real(UNREACHED), graph.op("Shape", [group])])
    near = graph.op("Expand", [graph.real(0.0), graph.op("Shape", [kept])])
    penalty = graph.op("ScatterElements", [far, kept, near], axis=1)
    reached = graph.op("Add", [apart, graph.op("Unsqueeze", [penalty, graph.integers(-1)])])
    return graph.reshape(reached, "rows", routing.groups * size)


def _quantised(
    graph: GraphBuilder, x: str, router: tuple[str, str], packed: PackedExperts, details: ExpertDetails
) -> str:
    inputs, zeros, first = [x, router[0]], list[str](), packed.gate_up.matrix
    for matrix, bias in ((stack.matrix, stack.bias) for stack in (packed.gate_up, packed.down)):
        assert matrix.scales is not None
        inputs += [graph.stored(matrix.weight), graph.parameter(matrix.scales), graph.parameter(bias) if bias else ""]
        zeros.append(graph.stored(matrix.zero_points) if matrix.zero_points else "")
    form = _swiglu(details) | {"expert_weight_bits": first.bits, "block_size": first.block, "weights_prepacked": 0}
    form |= {"accuracy_level": INT8_PRODUCTS, "normalize_routing_weights": int(details.routing.is_normalised)}
    return graph.op("QMoE", [*inputs, "", "", "", *zeros, "", router[1]], CONTRIB, **form)


def _floats(graph: GraphBuilder, x: str, router: tuple[str, str], packed: PackedExperts, details: ExpertDetails) -> str:
    """The operator takes the softmax of what it is given, chooses by it and shares by it; so other shares are given as
    logarithms, of the chosen experts alone, and their sum is multiplied with behind it."""
    (choice, scores), total = router, ""
    if scores:
        numbers = _best(graph, choice, details.spec.chosen)
        shares = graph.op("GatherElements", [scores, numbers], axis=1)
        total = graph.op("ReduceSum", [shares, graph.integers(-1)], keepdims=1)
        far = graph.op("Expand", [graph.real(UNREACHED), graph.op("Shape", [scores])])
        powers = graph.op("Log", [graph.op("Max", [shares, graph.real(LEAST_SHARE)])])
        choice = graph.op("ScatterElements", [far, numbers, powers], axis=1)
    inputs = [x, choice]
    for stack in (packed.gate_up, packed.down):
        inputs += [graph.parameter(stack.matrix.weight), graph.parameter(stack.bias) if stack.bias else ""]
    mixed = graph.op("MoE", inputs, domain=CONTRIB, normalize_routing_weights=1, **_swiglu(details))
    return graph.op("Mul", [mixed, total]) if total and not details.routing.is_normalised else mixed


def _swiglu(details: ExpertDetails) -> dict[str, Any]:
    form: dict[str, Any] = {"k": details.spec.chosen, "activation_type": "swiglu", "swiglu_fusion": 1}
    if (clipped := details.clipped) is None:
        return form | {"activation_alpha": 1.0, "activation_beta": 0.0}
    return form | {"activation_alpha": clipped.alpha, "activation_beta": 1.0, "swiglu_limit": clipped.limit}


def grouped(
    graph: GraphBuilder,
    x: str,
    outputs: str,
    packed: PackedExperts,
    details: ExpertDetails,
    activated: Callable[[str], str],
    rows: str = "",
) -> str:
    """As `routed`, for any activation, with gates or without. onnxruntime's operators for experts have silu gates alone
    on a CPU (1.31). Here rows are sorted by expert, and each expert costs two nodes, which take a microsecond where no
    row has chosen it. activated: writes the activation."""
    assert packed.gate_up.bias is None
    spec, first, last = details.spec, packed.gate_up.matrix, packed.down.matrix
    apart = graph.reshape(outputs, "rows", spec.count)
    shares, numbers = chosen(graph, apart, packed, details)
    if rows:
        tell_chosen(graph, numbers, details, rows)
    flat = graph.reshape(numbers, "rows")
    order = _ascending(graph, flat)
    hot = graph.op("OneHot", [flat, graph.integers(spec.count), graph.integers(0, 1)])
    counts = graph.op("ReduceSum", [hot, graph.integers(0)], keepdims=0)
    of_rows = graph.op("Div", [order, graph.integers(spec.chosen)])
    taken = graph.op("Gather", [graph.reshape(x, "rows", first.inputs), of_rows])
    inner = _products(graph, taken, counts, first, spec.count)
    if first.outputs == spec.ffn:
        inner = activated(inner)
    else:
        gate, up = graph.split(graph.reshape(inner, "rows", spec.ffn, 2), 1, 1)
        inner = graph.reshape(graph.op("Mul", [activated(gate), up]), "rows", spec.ffn)
    grown = _products(graph, inner, counts, last, spec.count)
    by_row = graph.reshape(graph.op("Gather", [grown, _ascending(graph, order)]), "rows", spec.chosen, last.outputs)
    weights = graph.op("Unsqueeze", [shares, graph.integers(-1)])
    mixed = graph.op("ReduceSum", [graph.op("Mul", [by_row, weights]), graph.integers(1)], keepdims=0)
    return graph.reshape(mixed, 1, "rows", last.outputs)


def _ascending(graph: GraphBuilder, numbers: str) -> str:
    """[some] -> the places of the lowest, the second lowest and so on."""
    return graph.op_many("TopK", [numbers, graph.op("Shape", [numbers])], 2, axis=0, largest=0)[1]


def _products(graph: GraphBuilder, x: str, counts: str, matrix: StoredMatrix, experts: int) -> str:
    """x [rows, inputs], by expert, of each as many rows as counts [E] says -> [rows, outputs]."""
    pieces = graph.op_many("Split", [x, counts], experts, axis=0)
    return graph.op("Concat", [_product(graph, piece, matrix, n, experts) for n, piece in enumerate(pieces)], axis=0)


def _product(graph: GraphBuilder, x: str, matrix: StoredMatrix, expert: int, experts: int) -> str:
    stacks = (matrix.weight, matrix.scales, matrix.zero_points)
    weight, scales, zeros = (stack and replace(stack.part(expert, experts), dims=stack.dims[1:]) for stack in stacks)
    assert weight is not None
    if not matrix.block:
        return graph.op("Gemm", [x, graph.parameter(weight)], transB=1)
    blocks = matrix.inputs // matrix.block
    weight = replace(weight, dims=(matrix.outputs, blocks, matrix.block * matrix.bits // 8))
    return multiply_blocks(graph, x, replace(matrix, weight=weight, scales=scales, zero_points=zeros))
