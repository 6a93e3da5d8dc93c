"""The stages of fused bundles, and their check: runs of every kind of pass against the float reference."""

import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from engine.bundle.fused import fused_shape
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, NpuSpec
from engine.bundle.variant import StepShape, shape_table
from engine.compile.check.baseline import baseline_figures
from engine.compile.check.parity import Opener, Parity, compare_logits, open_session
from engine.compile.check.parity_text import parity_texts
from engine.compile.compilation import Compilation, Stage, describe
from engine.compile.graphs.fused import WrittenGraph, build_fused_graph, finish, integer_graph
from engine.compile.graphs.integer_graphs import calibration_stage
from engine.compile.graphs.pool import GraphPlan, save_graph
from engine.compile.plan import fused_spec
from engine.compile.quantisation.choose.quality_stages import balance_stage, choose_codes_stage, drop_codes_stage
from engine.compile.quantisation.methods.method import Activations
from engine.compile.quantisation.methods.table import method_of
from engine.compile.stages import check_exact, float_logits, hash_stage, parity_figures, text_stage, weights_stage
from engine.compile.targets.npu import (
    EMULATED_PASSES,
    NOT_MEASURED,
    NPU_TARGETS,
    ON_CPU,
    Chains,
    binary_groups,
    choose_way,
    compile_groups,
)
from engine.compile.targets.npu_binaries import Link, binary_of, sdk_of, write_wrapper
from engine.runtime.fused import FusedRuntime
from engine.runtime.interface import PackedBatch, RowLayout
from engine.runtime.qnn.provider import EMULATOR, is_device, run_options
from engine.runtime.qnn.provider import open_session as open_npu_session
from engine.runtime.sessions import Provider

Float32 = NDArray[np.float32]


def fused_parity(work: Compilation, folder: Path, manifest: Manifest, count: int, opener: Opener | None) -> Parity:
    """About `count` tokens of text; of a prompt's chunk only the last row is compared. opener None = on the CPU.

    Fills in `work.parity`.
    """
    spec = manifest.fused
    assert spec is not None
    texts = parity_texts(work.arguments.source, work.folder, work.network.spec.vocab, count, spec.columns)
    work.progress.stage("parity", 2 * sum(map(len, texts)), "tokens")
    expected = float_logits(work, texts)
    provider = Provider("parity", lambda path: open_session(path, opener))
    runtime = FusedRuntime(folder, manifest, shape_table(manifest, max(spec.pd_total_len)), provider)
    try:
        places, found = zip(*_read(runtime, manifest, texts), strict=True)
    finally:
        runtime.close()
    starts = np.cumsum([0, *map(len, texts)])
    rows = [int(starts[text]) + position for text, position in places]
    work.progress.advance(sum(map(len, texts)))
    parity = compare_logits(expected[rows], np.stack(found))
    work.parity = parity_figures(work, parity)
    work.parity |= baseline_figures(work, texts, expected[rows], rows)
    return parity


def decoded_logits(runtime: FusedRuntime, manifest: Manifest, tokens: Sequence[int]) -> Float32:
    """Logits [tokens, V] of one text: the first token as a prompt, every other one as a decode."""
    spec = manifest.fused
    assert spec is not None
    computed, found = [0], []
    for position in range(len(tokens)):
        rows = 1 if position else spec.pd_total_len[-1]
        found += [logits for _, logits in _pass(runtime, [tokens], computed, [(0, 1)], rows)]
    return np.stack(found)


def _read(
    runtime: FusedRuntime, manifest: Manifest, texts: Sequence[Sequence[int]]
) -> Iterator[tuple[tuple[int, int], Float32]]:
    """((text, position), logits [V]) of every row that gives logits: the first half of a text as a prompt."""
    spec = manifest.fused
    assert spec is not None
    computed = [0] * len(texts)
    decoding: int | None = None
    for text, tokens in enumerate(texts):
        half = max(1, len(tokens) // 2)
        while computed[text] < half:
            chunk = min(half - computed[text], spec.pd_prefill_len[-1])
            pairs = [(text, chunk)]
            if decoding is not None and computed[decoding] < len(texts[decoding]):
                pairs.append((decoding, 1))
            yield from _pass(runtime, texts, computed, pairs, spec.pd_total_len[-1])
        while decoding is not None and computed[decoding] < len(texts[decoding]):
            yield from _pass(runtime, texts, computed, [(decoding, 1)], 1)
        decoding = text
    while decoding is not None and computed[decoding] < len(texts[decoding]):
        yield from _pass(runtime, texts, computed, [(decoding, 1)], 1)


def _pass(
    runtime: FusedRuntime,
    texts: Sequence[Sequence[int]],
    computed: list[int],
    pairs: Sequence[tuple[int, int]],
    rows: int,
) -> Iterator[tuple[tuple[int, int], Float32]]:
    """Run the next rows of some texts, each in the cache of its number, and keep them."""
    shape = next(shape for shape in runtime.shapes.fixed if shape.rows == rows)
    batch = _batch(shape, texts, computed, pairs)
    logits = runtime.run(batch).decoded()
    columns = batch.block_size
    for (text, count), segment, row in zip(pairs, batch.segments, logits, strict=True):
        at = text * columns + computed[text] + np.arange(count)
        runtime.keep(0, np.arange(segment.start, segment.end), at)
        computed[text] += count
        yield (text, computed[text] - 1), row.copy()


def _batch(
    shape: StepShape, texts: Sequence[Sequence[int]], computed: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> PackedBatch:
    layout = RowLayout(shape, sum(count for _, count in pairs))
    for text, count in pairs:
        past = computed[text]
        layout.add(texts[text][past : past + count], past, (text,) if past else (), past, logits=(count - 1,))
    return layout.batch(block_size=shape.past - 1)


NOT_GENIE = "Genie has no graphs of two caches"


def fused_stages(is_npu: bool, activations: Activations) -> tuple[Stage, ...]:
    """In order."""
    calibration: tuple[Stage, ...] = (calibration_stage,) if activations is Activations.INTEGER else ()
    made: tuple[Stage, ...] = (
        text_stage,
        balance_stage,
        choose_codes_stage,
        weights_stage,
        drop_codes_stage,
        *calibration,
        fused_graphs_stage,
    )
    if is_npu:
        return (*made, fused_binaries_stage, fused_quality_stage, hash_stage)
    return (*made, hash_stage, fused_parity_stage)


def fused_graphs_stage(work: Compilation) -> None:
    """Write every graph; all of them read the same weights."""
    plans = work.plans()
    spec = fused_spec(work.arguments)
    work.progress.stage("graphs", len(plans), "graphs")
    for plan in plans:
        shape = fused_shape(plan.name)
        made = finish(_written(work, plan), work.network.spec, shape, spec, work.arguments.is_npu)
        work.graphs.append(save_graph(plan, made.model, made.inputs, made.outputs, work.graph_folder))
        work.progress.advance(1)


def _written(work: Compilation, plan: GraphPlan) -> WrittenGraph:
    pipeline = work.pipeline
    is_integer = method_of(work.arguments).activations is Activations.INTEGER
    has_mask_codes = pipeline.dtype == "float32" and not is_integer  # an integer graph's mask becomes codes by itself
    builder = build_fused_graph(plan, work.packed[0], work.network, pipeline.lowering, pipeline.dtype, has_mask_codes)
    if is_integer:
        return integer_graph(work, plan, builder)
    return WrittenGraph(builder.model(plan.name), tuple(builder.inputs), tuple(builder.outputs))


def fused_parity_stage(work: Compilation) -> None:
    """Run the bundle against the float reference; a float bundle that differs is a bug, so it fails."""
    check_exact(work.arguments, fused_parity(work, work.folder, describe(work), work.arguments.parity_tokens, None))


def fused_binaries_stage(work: Compilation) -> None:
    """Compile every graph into a context binary and write a wrapper for each."""
    work.progress.stage("context binaries", len(work.graphs), "graphs")
    nodes: dict[str, NodeProto] = {}
    binaries: dict[str, tuple[str, ...]] = {}
    for file, made in compile_groups(work, binary_groups(work)):
        binaries[file] = tuple(node.name for node in made.values())
        nodes.update(made)
        work.progress.advance(len(made))
    chip = NPU_TARGETS[work.arguments.target]
    work.onnx_graphs = tuple(work.graphs)
    work.graphs[:], chains = _wrapped(work, nodes)
    sdk = sdk_of(next(iter(nodes.values())))
    work.npu = NpuSpec(chip.soc_model, chip.htp_arch, binaries, chains, sdk, not_genie=NOT_GENIE)


def _wrapped(work: Compilation, nodes: dict[str, NodeProto]) -> tuple[list[GraphSpec], Chains]:
    """A wrapper of one node for each graph; and what each of them runs."""
    made: list[GraphSpec] = []
    chains: Chains = {}
    for spec in work.graphs:
        node = nodes[spec.name]
        wrapper = write_wrapper(spec.name, [Link(spec, node)], 1, 1, work.folder)
        made.append(msgspec.structs.replace(wrapper, kind=GraphKind.FUSED))
        chains[spec.name] = ((binary_of(node), node.name),)
    return made, chains


def fused_quality_stage(work: Compilation) -> None:
    """Compare with the float reference where this machine can, then drop the intermediate files."""
    assert work.npu is not None
    tokens = work.arguments.parity_tokens
    work.progress.stage("quality", 2 * tokens, "tokens")
    way = choose_way(work.network.spec.parameters, bool(work.npu.shared), is_device())
    work.npu = msgspec.structs.replace(work.npu, parity_on=way)
    if way != NOT_MEASURED:
        draft, folder = describe(work), work.folder
        opener: Opener | None = None
        if way == ON_CPU:
            draft, folder = msgspec.structs.replace(draft, graphs=work.onnx_graphs), work.graph_folder
        else:
            options = run_options(NPU_TARGETS[work.arguments.target], extra="")
            opener = partial(open_npu_session, options=options, config={})
            tokens = min(tokens, EMULATED_PASSES) if way == EMULATOR else tokens
        fused_parity(work, folder, draft, tokens, opener)
    shutil.rmtree(work.graph_folder)
