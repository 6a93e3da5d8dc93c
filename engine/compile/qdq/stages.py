"""The compiler's stages for integer graphs: observe the float graphs on text, then write them with encodings."""

from pathlib import Path

import msgspec

from engine.bundle.manifest import GraphSpec
from engine.compile.graphs import GraphPlan, build_graph, plan_graphs, save_graph
from engine.compile.lowering import NPU
from engine.compile.packed import PackedPart
from engine.compile.pipeline import (
    Compilation,
    Stage,
    describe,
    hash_stage,
    parity_stage,
    text_stage,
    weights_stage,
)
from engine.compile.qdq.calibrate import calibration_shape, measure_ranges, observed
from engine.compile.qdq.encodings import MASK_FLOOR, choose_encodings, score_span
from engine.compile.qdq.float_graph import FloatGraph, prepare
from engine.compile.qdq.rewrite import quantise_graph
from engine.compile.qdq.texts import calibration_documents, token_sequences
from engine.errors import CompileError
from engine.models.network import Network

FLOAT = "float32"
SEQUENCES = 16
# A hidden column's share is exp(span - 100) at most; beyond this span it could round up to the smallest code.
SAFE_SPAN = 88.0


def float_graph(plan: GraphPlan, packed: PackedPart, network: Network, folder: Path) -> FloatGraph:
    """The graph of one part and shape with float activations."""
    made = build_graph(plan, packed, network, NPU, FLOAT)
    return prepare(folder, plan.part.number, made.model(plan.name), tuple(made.inputs), tuple(made.outputs))


def calibration_stage(work: Compilation, folder: Path) -> None:
    """Find an encoding for every activation. `folder` holds the weights; nothing stays in it."""
    shape = calibration_shape(work.network.compiled_context)
    length = shape.context // shape.rows * shape.rows
    assert work.text is not None
    documents = calibration_documents(work.arguments.source, work.arguments.calibration, work.folder, work.text)
    texts = token_sequences(documents, work.folder, work.text, work.network.spec.vocab, length, SEQUENCES)
    work.progress.stage("calibration", sum(map(len, texts)), "tokens")
    graphs, specs = [], []
    for part, packed in zip(work.parts, work.packed, strict=True):
        (plan,) = plan_graphs(part, (shape,))
        graph = float_graph(plan, packed, work.network, folder)
        model, outputs = observed(graph)
        graphs.append(graph)
        specs.append(save_graph(plan, model, graph.inputs, outputs, folder))
    draft = msgspec.structs.replace(describe(work), graphs=tuple(specs), kv_dtype=FLOAT)
    ranges = measure_ranges(folder, draft, shape, texts, work.progress.advance)
    for spec in specs:
        (folder / spec.file).unlink()
    work.encodings = choose_encodings(graphs, ranges, work.network.spec.rope.factor)
    span = score_span(graphs, ranges)
    if span > SAFE_SPAN:
        work.progress.note(f"attention scores span {span:.0f}: a mask of {MASK_FLOOR:.0f} may not hide every column")


def integer_graphs(work: Compilation, folder: Path) -> None:
    """Write the graph of every part and shape into `folder`, all with the same encodings."""
    plans = [plan for part in work.parts for plan in plan_graphs(part, work.shapes)]
    work.progress.stage("graphs", len(plans), "graphs")
    for plan in plans:
        work.graphs.append(write_integer_graph(work, plan, folder))
        work.progress.advance(1)


def write_integer_graph(work: Compilation, plan: GraphPlan, folder: Path) -> GraphSpec:
    """One graph. CompileError when an activation was never calibrated."""
    graph = float_graph(plan, work.packed[plan.part.number - 1], work.network, folder)
    missing = [name for name in graph.activations() if graph.key(name) not in work.encodings]
    if missing:
        raise CompileError(f"activation {missing[0]} of {plan.name} was not calibrated")
    model, inputs, outputs = quantise_graph(graph, work.encodings)
    return save_graph(plan, model, inputs, outputs, folder)


def _calibrate_beside(work: Compilation) -> None:
    calibration_stage(work, work.folder)


def _graphs_beside(work: Compilation) -> None:
    integer_graphs(work, work.folder)


CPU_STAGES = (
    Stage("text", text_stage),
    Stage("weights", weights_stage),
    Stage("calibration", _calibrate_beside),
    Stage("graphs", _graphs_beside),
    Stage("hashes", hash_stage),
    Stage("parity", parity_stage),
)
