"""Compiling for an NPU: chips, the cut into binaries, how they are made and chained, Genie."""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import msgspec
import onnx
from onnx import NodeProto

from engine.bundle.manifest import GraphKind, GraphSpec, NpuSpec
from engine.compile.arguments import DEFAULT_PART_MB, DEFAULT_SPLIT, CompileArguments, Layout, Quant, Split, Target
from engine.compile.compilation import Compilation, describe
from engine.compile.graphs.pool import PartPlan, plan_parts
from engine.compile.plan import layout_of
from engine.compile.quantisation.methods.table import METHODS, head_method, method_of
from engine.compile.targets.context import ContextJob
from engine.errors import BundleError, CompileError
from engine.genie.write import write_genie_files
from engine.isolation.machine import usable_memory
from engine.models.network import Network
from engine.processes import child_environment, exit_text, module_command
from engine.runtime.qnn.binary import write_wrapper
from engine.runtime.qnn.environment import MISSING, PACKAGE
from engine.runtime.qnn.provider import HtpTarget

CONTEXT_OP, BINARY = "EPContext", "ep_cache_context"
UNSUPPORTED = re.compile(r"Unsupported nodes in QNN EP: \{ name: (\S+), type: (\w+) \}")
FAILED_OPERATION = re.compile(r"(?:Failed to (?:validate|finalize|add)|[Vv]alidation failed).{0,200}")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LAST_WORDS = 600
# Of graphs that are whole ones alone.
KEPT_KINDS = (
    *(GraphKind.LMHEAD, GraphKind.ENCODER, GraphKind.FUSED),
    *(GraphKind.SPEECH_ENCODER, GraphKind.SPEECH_DECODER, GraphKind.IMAGE_ENCODER),
)


def run_job(job: ContextJob) -> None:
    """Make one binary in a process of its own. CompileError names the graph and, where it is told, the operator."""
    command = module_command("engine.compile.targets.context", msgspec.json.encode(job).decode())
    result = subprocess.run(
        command, env=child_environment(), capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    if result.returncode != 0:
        names = ", ".join(Path(source).stem for source in job.sources)
        raise CompileError(f"{names} cannot be compiled for the NPU: {reason(result.stderr, result.returncode)}")


def reason(errors: str, code: int) -> str:
    """One sentence from what the libraries wrote."""
    errors = COLOURS.sub("", errors)
    if PACKAGE in errors and "No module named" in errors:
        return MISSING
    if found := UNSUPPORTED.search(errors):
        return f"the NPU has no operator {found[2]} (node {found[1]})"
    detail = FAILED_OPERATION.search(errors)
    words = detail[0] if detail else " ".join(errors.split())[-_LAST_WORDS:]
    return f"{words or 'no reason was given'} (it {exit_text(code)})"


def context_node(wrapper: Path) -> NodeProto:
    """A wrapper's EPContext node; CompileError when the graph did not become exactly one binary."""
    nodes: list[NodeProto] = list(onnx.load(str(wrapper), load_external_data=False).graph.node)
    if len(nodes) != 1 or nodes[0].op_type != CONTEXT_OP:
        raise CompileError(f"{wrapper.stem} was compiled only in part: {', '.join(node.op_type for node in nodes)}")
    return nodes[0]


def told_by(node: NodeProto, name: str) -> str:
    """An attribute of a context node: the binary's file name, or the QNN version that made it."""
    return str(next(attribute.s for attribute in node.attribute if attribute.name == name).decode())


Link = tuple[GraphSpec, NodeProto]  # one part of a step: the graph it was written as, and its node in the wrapper


def save_chain(name: str, links: Sequence[Link], part: int, parts: int, folder: Path) -> GraphSpec:
    """Write `folder/<name>.onnx` and describe it. Tensors that one part hands to a later one stay inside it."""
    specs, nodes = [spec for spec, _ in links], [node for _, node in links]
    made = {tensor.name: tensor for spec in specs for tensor in spec.outputs}
    taken = {tensor.name: tensor for spec in specs for tensor in spec.inputs}
    inputs = tuple(tensor for name, tensor in taken.items() if name not in made)
    outputs = tuple(tensor for name, tensor in made.items() if name not in taken)
    # onnxruntime cannot infer what a context node gives, so what stays inside is declared as well.
    inner = [tensor for name, tensor in made.items() if name in taken]
    write_wrapper(folder / f"{name}.onnx", nodes, inputs, outputs, inner)
    is_whole = len(specs) == 1 and specs[0].kind in KEPT_KINDS
    kind = specs[0].kind if is_whole else GraphKind.DEFAULT if parts == 1 else GraphKind.DECODER
    layers = [spec for spec in specs if spec.first_layer is not None]
    return GraphSpec(
        name,
        f"{name}.onnx",
        kind,
        part,
        parts,
        inputs,
        outputs,
        rows=specs[0].rows,
        context=specs[-1].context,
        first_layer=layers[0].first_layer if layers else None,
        last_layer=layers[-1].last_layer if layers else None,
    )


# SoC numbers and Hexagon versions as Qualcomm's tools list them; the laptops' are X Elite, X Plus and X2 Elite.
NPU_TARGETS = {
    Target.X_ELITE: HtpTarget(60, 73),
    Target.X_PLUS: HtpTarget(60, 73),
    Target.X2_ELITE: HtpTarget(88, 81),
    Target.GEN8_2: HtpTarget(43, 73),
    Target.GEN8_3: HtpTarget(57, 75),
    Target.GEN8_ELITE: HtpTarget(69, 79),
    Target.GEN8_ELITE_5: HtpTarget(87, 81),
}
MEGABYTE = 1_000_000
COMPILER_FACTOR = 10  # the compiler of two variants takes so many times the memory of a part's weights
MEMORY_SHARE = 0.8  # of the machine, for one compiler; the rest of the system has the other part


def plan_binaries(arguments: CompileArguments, network: Network, memory: int = 0) -> tuple[PartPlan, ...]:
    """Parts in the order they run, none with more weights than `part_mb`. CompileError when one layer has more. memory:
    bytes of the machine, 0 = unknown. The default of `part_mb` is less where its compiler would not fit."""
    spec, layer = network.spec, layer_bytes(arguments.quant, network)
    embedding = spec.vocab * spec.hidden * 2
    first = 0 if arguments.split in (Split.LUT_LMHEAD, Split.HOST_LMHEAD) else embedding
    head = spec.vocab * spec.hidden * head_method(arguments).bytes_per_weight
    last = head if arguments.split is Split.NONE else 0.0
    limit = float(arguments.part_mb * MEGABYTE)
    if memory and arguments.part_mb == DEFAULT_PART_MB:
        limit = min(limit, max(compilable_bytes(memory), layer + max(first, last)))
    # Layers in runs of nearly equal length, as few as fit.
    for count in range(1, spec.layers + 1):
        bounds = [spec.layers * index // count for index in range(count + 1)]
        runs = [range(start, stop) for start, stop in pairwise(bounds)]
        sizes = [len(run) * layer for run in runs]
        sizes[0] += first
        sizes[-1] += last
        if max(sizes) <= limit:
            return plan_parts(arguments.split or DEFAULT_SPLIT, runs)
    raise CompileError(
        f"--part-mb {arguments.part_mb} is too small: one layer has {layer / MEGABYTE:.0f} MB, "
        f"the embedding {embedding / MEGABYTE:.0f} MB, the LM head {head / MEGABYTE:.0f} MB"
    )


def compilable_bytes(memory: int) -> float:
    """Bytes of weights that a machine with so much memory can have under compilation at once."""
    return MEMORY_SHARE * memory / COMPILER_FACTOR


def layer_bytes(quant: Quant, network: Network) -> float:
    """Bytes of one layer's matrices as stored."""
    spec = network.spec
    projections = spec.hidden * (2 * network.query_width + 2 * network.key_width)
    return (projections + 3 * spec.hidden * spec.ffn) * METHODS[quant].bytes_per_weight


NOT_GENIE = "Genie has no graphs of two caches"
LARGEST_AT_ONCE = 1_500_000_000  # bytes of weights under compilation; a compiler takes some seven times as much memory
IMAGE_BINARY = "vision_encoder.bin"
SOURCES = "sources"  # folder in the unfinished bundle for the weights and ONNX graphs that binaries are made from


def binaries_stage(work: Compilation) -> None:
    """Compile every graph into a context binary, then write the wrappers that run the parts of a step in a chain."""
    work.progress.stage("context binaries", len(work.graphs), "graphs")
    nodes, binaries = dict[str, NodeProto](), dict[str, tuple[str, ...]]()
    for file, made in compile_groups(work):
        binaries[file] = tuple(node.name for node in made.values())
        nodes.update(made)
        work.progress.advance(len(made))
    names = [node.name for node in nodes.values()]
    if len(set(names)) < len(names):
        raise CompileError("two graphs got the same name inside their binaries; they could not be told apart")
    chip, sdk = NPU_TARGETS[work.arguments.target], told_by(next(iter(nodes.values())), "ep_sdk_version")
    work.onnx_graphs = tuple(work.graphs)
    work.graphs[:], chains = chain(work, nodes)
    is_fused = layout_of(work.arguments) is Layout.FUSED
    work.npu = NpuSpec(chip.soc_model, chip.htp_arch, binaries, chains, sdk, not_genie=NOT_GENIE if is_fused else "")


def image_binary_stage(work: Compilation) -> None:
    """Compile the graph of images, where there is one, into a binary of its own."""
    graph, npu = work.image_graph, work.npu
    if graph is None:
        return
    assert npu is not None
    work.progress.stage("image encoder", 1, "graphs")
    (node,) = make_binary(work.graph_folder, [graph.name], work.folder / IMAGE_BINARY, work.arguments.target).values()
    work.image_graph = save_chain(graph.name, [(graph, node)], 1, 1, work.folder)
    inside = {IMAGE_BINARY: (node.name,)}, {graph.name: ((IMAGE_BINARY, node.name),)}
    work.npu = msgspec.structs.replace(npu, binaries=npu.binaries | inside[0], chains=npu.chains | inside[1])
    work.progress.advance(1)


def compile_groups(work: Compilation) -> Iterator[tuple[str, dict[str, NodeProto]]]:
    """Make the binaries, several at once where processors and memory allow it; each with its context nodes."""
    groups: dict[str, list[str]] = {}
    for plan in work.plans():
        shared = f"part_{plan.part.number}_of_{plan.part.count}.bin"
        groups.setdefault(shared if work.arguments.share_weights else f"{plan.name}.bin", []).append(plan.name)
    folder, target, has_integers = work.folder, work.arguments.target, method_of(work.arguments).has_integer_blocks
    largest = max(path.stat().st_size for path in work.graph_folder.iterdir())
    with ThreadPoolExecutor(at_once(largest, len(groups), os.cpu_count() or 1, usable_memory())) as pool:
        jobs = [
            pool.submit(make_binary, work.graph_folder, names, folder / file, target, has_integers)
            for file, names in groups.items()
        ]
        try:
            for file, job in zip(groups, jobs, strict=True):
                yield file, job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def at_once(largest_bytes: int, jobs: int, processors: int, memory: int = 0) -> int:
    """How many compilers may run side by side; each uses one processor. memory: bytes of the machine, 0 = unknown."""
    together = min(LARGEST_AT_ONCE, int(compilable_bytes(memory))) if memory else LARGEST_AT_ONCE
    return max(1, min(jobs, processors, together // max(1, largest_bytes)))


def make_binary(
    sources: Path, names: Sequence[str], output: Path, target: Target, has_integers: bool = False
) -> dict[str, NodeProto]:
    """Compile graphs that lie in `sources` into one binary; context node by graph name. CompileError."""
    chip, wrappers = NPU_TARGETS[target], [sources / f"{name}_ctx.onnx" for name in names]
    graphs = tuple(str(sources / f"{name}.onnx") for name in names)
    run_job(ContextJob(graphs, tuple(map(str, wrappers)), chip.soc_model, chip.htp_arch, has_integers))
    nodes = {name: context_node(wrapper) for name, wrapper in zip(names, wrappers, strict=True)}
    found = {told_by(node, BINARY) for node in nodes.values()}
    if len(found) != 1:
        told = f"{len(found)} binaries instead of one: {', '.join(sorted(found))}"
        raise CompileError(f"{', '.join(names)} became {told}")
    (sources / found.pop()).replace(output)
    for node in nodes.values():
        next(attribute for attribute in node.attribute if attribute.name == BINARY).s = output.name.encode()
    return nodes


Chains = dict[str, tuple[tuple[str, str], ...]]


def chain(work: Compilation, nodes: dict[str, NodeProto]) -> tuple[list[GraphSpec], Chains]:
    """One wrapper for the layers of each shape, one for each LM head; and what each of them runs."""
    specs = {spec.name: spec for spec in work.graphs}
    body = [plan for plan in work.plans() if plan.part.kind is not GraphKind.LMHEAD]
    heads = [plan for plan in work.plans() if plan.part.kind is GraphKind.LMHEAD]
    made, chains, count = [], {}, 2 if heads else 1
    wanted = [(f"{shape}_1_of_{count}", 1, [plan for plan in body if plan.runs_in(shape)]) for shape in work.shapes]
    wanted += [(f"{plan.shape}_2_of_2", 2, [plan]) for plan in heads]
    if layout_of(work.arguments) is Layout.FUSED:  # a graph is a whole step
        wanted = [(plan.name, 1, [plan]) for plan in body]
    for name, number, plans in wanted:
        links = [(specs[plan.name], nodes[plan.name]) for plan in plans]
        made.append(save_chain(name, links, number, count, work.folder))
        chains[name] = tuple((told_by(node, BINARY), node.name) for _, node in links)
    return made, chains


def genie_stage(work: Compilation) -> None:
    """Make it a bundle for Qualcomm's Genie as well; where Genie could not run it, say why and keep that."""
    npu = work.npu
    assert npu is not None
    work.progress.stage("Genie files", len(npu.binaries), "binaries")
    try:
        made = write_genie_files(work.folder, describe(work), work.source.config)
    except BundleError as error:
        work.npu = msgspec.structs.replace(npu, not_genie=str(error))
        work.progress.note(f"hexserve can run this bundle, Genie cannot: {error}")
        return
    work.npu = made.npu
    work.progress.advance(len(npu.binaries))
