"""The stages of a segmented bundle: weights, linear graphs, what they and the caches lose, graphs of sequences."""

from engine.bundle.manifest import GraphKind, GraphSpec
from engine.bundle.recurrent_forms import RECURRENT
from engine.bundle.segments import ATTENTION, LINEAR_DATA, SHARED_DATA
from engine.bundle.task import ModelTask
from engine.compile.arguments import KvType
from engine.compile.compilation import Compilation
from engine.compile.graph_builder import GraphBuilder
from engine.compile.layout import kv_type
from engine.compile.lora import lora_modules
from engine.compile.parts import PartPlan
from engine.compile.segments.graphs import attention_graph, linear_graph
from engine.compile.segments.int8_attention import int8_attention_graphs
from engine.compile.segments.masked_attention import masked_attention_graphs
from engine.compile.segments.recurrent import recurrent_graph
from engine.compile.stages import check_all_used, overflow_refused
from engine.compile.weight_file import WeightFile
from engine.compile.weights import WeightPacker
from engine.models.network import Network


def whole_network(layers: int) -> PartPlan:
    """Everything as one part: its weights are packed together, its graphs are cut at every layer."""
    return PartPlan(1, 1, GraphKind.LINEAR, True, range(layers), True, "input_ids", "logits")


def segment_weights_stage(work: Compilation) -> None:
    """Quantise and write the weights; embedding, norms and biases lie apart from the matrices."""
    work.progress.stage(f"weights ({work.arguments.quant})", work.checkpoint.total_bytes(), "B")
    packer = WeightPacker(work.checkpoint, work.network, work.arguments, work.progress.advance)
    with (
        overflow_refused(work.arguments.quant),
        WeightFile(work.folder, SHARED_DATA) as shared,
        WeightFile(work.folder, LINEAR_DATA) as matrices,
    ):
        work.packed.append(packer.pack(work.parts[0], matrices, shared))
    work.files |= {file.name: file.entry for file in (shared, matrices)}
    check_all_used(work.checkpoint, work.network, work.arguments.task is not ModelTask.EMBED)


def linear_graphs_stage(work: Compilation) -> None:
    """Write the linear graphs, and the graph of recurrent layers, which runs between them."""
    count, recurrent = work.network.spec.layers + 1, work.network.spec.recurrent
    modules = lora_modules(work.network) if work.arguments.lora else ()
    work.progress.stage("graphs", count + (recurrent is not None), "graphs")
    for part in range(1, count + 1):
        graph = linear_graph(work.packed[0], work.network, part, modules)
        _write(work, f"linear_{part}_of_{count}", GraphKind.LINEAR, graph, part, count)
    if recurrent is not None:
        _write(work, RECURRENT, GraphKind.RECURRENT, recurrent_graph(recurrent))


def attention_graphs_stage(work: Compilation) -> None:
    """Write the attention graphs, which all layers share, for the type of caches that was chosen."""
    graphs = _attention_graphs(work.network, kv_type(work.arguments))
    work.progress.stage("attention graphs", len(graphs), "graphs")
    for name, graph in graphs.items():
        _write(work, name, GraphKind.ATTENTION, graph)


def _attention_graphs(network: Network, kv: KvType) -> dict[str, GraphBuilder]:
    plain = int8_attention_graphs(network) if kv is KvType.INT8 else {ATTENTION: attention_graph(network)}
    return plain | masked_attention_graphs(network, kv.value)


def _write(work: Compilation, name: str, kind: GraphKind, graph: GraphBuilder, part: int = 1, parts: int = 1) -> None:
    spec = GraphSpec(name, f"{name}.onnx", kind, part, parts, tuple(graph.inputs), tuple(graph.outputs))
    (work.folder / spec.file).write_bytes(graph.model(name).SerializeToString())
    work.graphs.append(spec)
    work.progress.advance(1)
