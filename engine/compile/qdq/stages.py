"""The compiler's stages for integer graphs: observe the float graphs on text, then write them with encodings."""

import msgspec

from engine.bundle.manifest import GraphSpec
from engine.compile.arguments import QualityLevel
from engine.compile.compilation import Compilation
from engine.compile.description import describe
from engine.compile.graphs import GraphPlan, build_graph, plan_graphs, save_graph
from engine.compile.qdq.calibrate import calibration_shape, observe, observed_graph
from engine.compile.qdq.encodings import MASK_FLOOR, choose_encodings, score_span
from engine.compile.qdq.error_range import error_range
from engine.compile.qdq.float_graph import FloatGraph, prepare
from engine.compile.qdq.ranges import extreme_range
from engine.compile.qdq.rewrite import quantise_graph
from engine.compile.texts.documents import calibration_documents
from engine.compile.texts.sequences import token_sequences
from engine.errors import CompileError

SEQUENCES = 16
# A hidden column's share is exp(span - 100) at most; beyond this span it could round up to the smallest code.
SAFE_SPAN = 88.0


def float_graph(work: Compilation, plan: GraphPlan) -> FloatGraph:
    """The graph of one part and shape with float activations; the weights lie in the compilation's graph folder."""
    packed, pipeline = work.packed[plan.part.number - 1], work.pipeline
    made = build_graph(plan, packed, work.network, pipeline.lowering, pipeline.dtype)
    return prepare(work.graph_folder, plan.part.number, made.model(plan.name), tuple(made.inputs), tuple(made.outputs))


def calibration_stage(work: Compilation) -> None:
    """Find an encoding for every activation by running float graphs on text; the graphs do not stay."""
    folder = work.graph_folder
    shape = calibration_shape(work.network.compiled_context)
    length = shape.context // shape.rows * shape.rows
    assert work.text is not None
    documents = calibration_documents(work.arguments.source, work.arguments.calibration, work.folder, work.text)
    texts = token_sequences(documents, work.folder, work.text, work.network.spec.vocab, length, SEQUENCES)
    work.progress.stage("calibration", sum(map(len, texts)), "tokens")
    graphs, specs = [], []
    for part in work.parts:
        (plan,) = plan_graphs(part, (shape,))
        graph = float_graph(work, plan)
        model, outputs = observed_graph(graph)
        graphs.append(graph)
        specs.append(save_graph(plan, model, graph.inputs, outputs, folder))
    draft = msgspec.structs.replace(describe(work), graphs=tuple(specs), kv_dtype=work.pipeline.dtype)
    observed = observe(folder, draft, shape, texts, work.progress.advance)
    for spec in specs:
        (folder / spec.file).unlink()
    choose = extreme_range if work.arguments.quality is QualityLevel.FAST else error_range
    work.encodings = choose_encodings(graphs, observed, work.network.spec.rope.factor, choose)
    span = score_span(graphs, observed)
    if span > SAFE_SPAN:
        work.progress.note(f"attention scores span {span:.0f}: a mask of {MASK_FLOOR:.0f} may not hide every column")


def integer_graphs_stage(work: Compilation) -> None:
    """Write the graph of every part and shape, all with the same encodings."""
    plans = work.plans()
    work.progress.stage("graphs", len(plans), "graphs")
    for plan in plans:
        work.graphs.append(write_integer_graph(work, plan))
        work.progress.advance(1)


def write_integer_graph(work: Compilation, plan: GraphPlan) -> GraphSpec:
    """One graph. CompileError when an activation was never calibrated."""
    graph = float_graph(work, plan)
    missing = [name for name in graph.activations() if graph.key(name) not in work.encodings]
    if missing:
        raise CompileError(f"activation {missing[0]} of {plan.name} was not calibrated")
    model, inputs, outputs = quantise_graph(graph, work.encodings)
    return save_graph(plan, model, inputs, outputs, work.graph_folder)
