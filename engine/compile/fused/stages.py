"""The compiler's stages for fused graphs: writing them, comparing them with the float reference, their binaries."""

import shutil
from functools import partial

import msgspec
from onnx import NodeProto

from engine.bundle.fused import fused_shape
from engine.bundle.manifest import GraphKind, GraphSpec, NpuSpec
from engine.compile.calibrated.balance import balance_stage
from engine.compile.calibrated.stages import choose_codes_stage, drop_codes_stage
from engine.compile.compilation import Compilation, Stage
from engine.compile.description import describe
from engine.compile.fused.finish import WrittenGraph, finish
from engine.compile.fused.graphs import build_fused_graph
from engine.compile.fused.integer import integer_graph
from engine.compile.fused.parity import fused_parity
from engine.compile.fused.plan import fused_spec
from engine.compile.graphs import GraphPlan, save_graph
from engine.compile.npu.binaries import binary_of, sdk_of
from engine.compile.npu.quality import EMULATED_PASSES, NOT_MEASURED, ON_CPU, choose_way
from engine.compile.npu.stages import Chains, binary_groups, compile_groups
from engine.compile.npu.targets import NPU_TARGETS
from engine.compile.npu.wrappers import Link, write_wrapper
from engine.compile.parity import Opener
from engine.compile.qdq.stages import calibration_stage
from engine.compile.quantization.method import Activations
from engine.compile.quantization.table import method_of
from engine.compile.stages import check_exact, hash_stage, text_stage, weights_stage
from engine.graphs.onnx_qnn import EMULATOR, is_device, open_session, run_options

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
            opener = partial(open_session, options=options, config={})
            tokens = min(tokens, EMULATED_PASSES) if way == EMULATOR else tokens
        fused_parity(work, folder, draft, tokens, opener)
    shutil.rmtree(work.graph_folder)
