"""Fused graphs with integer activations: encodings are those of the row graph's tensors that a tensor stands for."""

from engine.bundle.encoding import Encoding
from engine.compile.compilation import Compilation
from engine.compile.fused.builder import FusedBuilder
from engine.compile.fused.finish import WrittenGraph
from engine.compile.graphs import GraphPlan
from engine.compile.qdq.float_graph import WIDE, FloatGraph, prepare
from engine.compile.qdq.rewrite import quantise_graph
from engine.errors import CompileError


def integer_graph(work: Compilation, plan: GraphPlan, builder: FusedBuilder) -> WrittenGraph:
    """The graph with quantise/dequantise pairs. CompileError when an activation was never calibrated."""
    inputs, outputs = tuple(builder.inputs), tuple(builder.outputs)
    graph = prepare(work.graph_folder, plan.part.number, builder.model(plan.name), inputs, outputs)
    return WrittenGraph(*quantise_graph(graph, _encodings(work, plan, graph, builder.stands_for)))


def _encodings(
    work: Compilation, plan: GraphPlan, graph: FloatGraph, stands_for: dict[str, str]
) -> dict[str, Encoding]:
    """By key of the fused graph's activations."""
    found: dict[str, Encoding] = {}
    for name in graph.activations():
        twin = stands_for.get(name, name)
        # The row graph's own key: parts share the names on their borders only.
        encoding = work.encodings.get(twin) or work.encodings.get(f"{plan.part.number}/{twin}")
        if encoding is None:
            raise CompileError(f"activation {name} of {plan.name} was not calibrated as {twin.removesuffix(WIDE)}")
        found[graph.key(name)] = encoding
    return found
