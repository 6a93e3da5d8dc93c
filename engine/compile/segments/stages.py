"""The stages of a segmented bundle: weights in one or two storages, linear and attention graphs, parity."""

from dataclasses import dataclass

from engine.bundle.manifest import GraphKind, GraphSpec
from engine.bundle.recurrent_forms import RECURRENT
from engine.bundle.segments import ATTENTION, NARROW_DATA, SHARED_DATA, WIDE_DATA, WIDE_SUFFIX
from engine.bundle.task import ModelTask
from engine.compile.arguments import KvType
from engine.compile.baseline import baseline_figures
from engine.compile.compilation import Compilation
from engine.compile.description import describe
from engine.compile.graph_builder import GraphBuilder
from engine.compile.layout import WIDE_ROWS, kv_type, wide_method
from engine.compile.lora import lora_modules
from engine.compile.packed import PackedPart
from engine.compile.parity import compare_logits
from engine.compile.parts import PartPlan
from engine.compile.segments.graphs import attention_graph, linear_graph
from engine.compile.segments.int8_attention import int8_attention_graphs
from engine.compile.segments.kv_caches import float_attention
from engine.compile.segments.masked_attention import masked_attention_graphs
from engine.compile.segments.parity import storage_logits
from engine.compile.segments.recurrent import recurrent_graph
from engine.compile.segments.wide import WideWriter
from engine.compile.stages import (
    check_all_used,
    check_exact,
    float_logits,
    held_out_texts,
    overflow_refused,
    parity_figures,
)
from engine.compile.weight_file import WeightFile
from engine.compile.weights import WeightPacker
from engine.models.network import Network


def whole_network(layers: int) -> PartPlan:
    """Everything as one part: its weights are packed together, its graphs are cut at every layer."""
    return PartPlan(1, 1, GraphKind.LINEAR, True, range(layers), True, "input_ids", "logits")


def segment_weights_stage(work: Compilation) -> None:
    """Quantise and write the weights; embedding, norms and biases lie apart, for both storages."""
    work.progress.stage(f"weights ({work.arguments.quant})", work.checkpoint.total_bytes(), "B")
    packer = WeightPacker(work.checkpoint, work.network, work.arguments, work.progress.advance)
    with (
        overflow_refused(work.arguments.quant),
        WeightFile(work.folder, SHARED_DATA) as shared,
        WeightFile(work.folder, NARROW_DATA) as narrow,
    ):
        work.packed.append(packer.pack(work.parts[0], narrow, shared))
    work.files |= {file.name: file.entry for file in (shared, narrow)}
    check_all_used(work.checkpoint, work.network, work.arguments.task is not ModelTask.EMBED)


def wide_weights_stage(work: Compilation) -> None:
    """Write the matrices once more, if passes of many rows shall read another storage."""
    wide = wide_method(work.arguments)
    narrow = [linear.matrix for linear in work.packed[0].linears() if linear.matrix.bits == 4]
    if wide is None or not narrow:
        return
    numbers = sum(matrix.inputs * matrix.outputs for matrix in narrow)
    work.progress.stage(f"wide weights ({wide.quant})", numbers, "B")
    with WeightFile(work.folder, WIDE_DATA) as file:
        work.wide = WideWriter(work.folder, file, work.arguments, work.progress.advance).pack(work.packed[0])
    work.files[WIDE_DATA] = file.entry


@dataclass(frozen=True, slots=True)
class _Storage:
    packed: PackedPart
    suffix: str
    least_rows: int


def segment_graphs_stage(work: Compilation) -> None:
    """Write the linear graphs of every storage, and those that run for each sequence, which layers share."""
    storages = [_Storage(work.packed[0], "", 1)]
    if work.wide is not None:
        storages.append(_Storage(work.wide, WIDE_SUFFIX, WIDE_ROWS))
    count = work.network.spec.layers + 1
    of_sequences = _sequence_graphs(work.network, kv_type(work.arguments))
    modules = lora_modules(work.network) if work.arguments.lora else ()
    work.progress.stage("graphs", len(storages) * count + len(of_sequences), "graphs")
    for storage in storages:
        for part in range(1, count + 1):
            graph = linear_graph(storage.packed, work.network, part, modules)
            spec = GraphSpec(
                name=f"linear_{part}_of_{count}{storage.suffix}",
                file=f"linear_{part}_of_{count}{storage.suffix}.onnx",
                kind=GraphKind.LINEAR,
                part=part,
                parts=count,
                inputs=tuple(graph.inputs),
                outputs=tuple(graph.outputs),
                least_rows=storage.least_rows,
            )
            _write(work, spec, graph)
    for name, graph in of_sequences.items():
        kind = GraphKind.RECURRENT if name == RECURRENT else GraphKind.ATTENTION
        inputs, outputs = tuple(graph.inputs), tuple(graph.outputs)
        _write(work, GraphSpec(name, f"{name}.onnx", kind, 1, 1, inputs, outputs), graph)


def _sequence_graphs(network: Network, kv: KvType) -> dict[str, GraphBuilder]:
    """The graphs that run for each sequence, by name."""
    plain = int8_attention_graphs(network) if kv is KvType.INT8 else {ATTENTION: attention_graph(network)}
    recurrent = network.spec.recurrent
    own = {} if recurrent is None else {RECURRENT: recurrent_graph(recurrent)}
    return plain | masked_attention_graphs(network, kv.value) | own


def _write(work: Compilation, spec: GraphSpec, graph: GraphBuilder) -> None:
    (work.folder / spec.file).write_bytes(graph.model(spec.name).SerializeToString())
    work.graphs.append(spec)
    work.progress.advance(1)


def segment_parity_stage(work: Compilation) -> None:
    """Run the bundle against the float reference, through each storage, and rounded caches against float ones."""
    draft, is_rounded = describe(work), kv_type(work.arguments) is KvType.INT8
    texts = held_out_texts(work, work.arguments.parity_tokens)
    count = sum(map(len, texts))
    work.progress.stage("parity", (2 + (work.wide is not None) + is_rounded) * count, "tokens")
    expected = float_logits(work, texts)
    measured = storage_logits(work.folder, draft, texts, WIDE_ROWS - 1, 1)
    narrow = compare_logits(expected, measured)
    work.progress.advance(count)
    work.parity = parity_figures(work, narrow)
    work.parity |= baseline_figures(work, texts, expected)
    if is_rounded:
        floats = storage_logits(work.folder, draft, texts, WIDE_ROWS - 1, 1, float_attention(work.network))
        check_exact(work.arguments, compare_logits(expected, floats))
        lost = parity_figures(work, compare_logits(floats, measured))
        work.parity |= {f"kv_{name}": lost[name] for name in lost.keys() - {"tokens", "relative_error"}}
        work.progress.advance(count)
    else:
        check_exact(work.arguments, narrow)
    if work.wide is not None:
        rows = max(WIDE_ROWS, max(map(len, texts)) // 2)
        found = storage_logits(work.folder, draft, texts, rows, WIDE_ROWS)
        wide = parity_figures(work, compare_logits(expected, found))
        work.parity |= {f"wide_{name}": wide[name] for name in wide.keys() - {"tokens"}}
        work.progress.advance(count)
