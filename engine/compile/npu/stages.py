"""The stages that only an NPU has: context binaries, the wrappers that chain them, quality, Genie's files."""

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
from onnx import NodeProto

from engine.bundle.manifest import GraphKind, GraphSpec, NpuSpec
from engine.compile.compilation import Compilation
from engine.compile.description import describe
from engine.compile.graphs import GraphPlan, plan_graphs
from engine.compile.npu.binaries import binary_of, context_node, point_to, run_job, sdk_of
from engine.compile.npu.context import ContextJob
from engine.compile.npu.quality import measure_quality
from engine.compile.npu.split import compilable_bytes
from engine.compile.npu.targets import NPU_TARGETS
from engine.compile.npu.wrappers import Link, write_wrapper
from engine.compile.parts import PartPlan
from engine.compile.quantization.table import method_of
from engine.errors import BundleError, CompileError
from engine.genie.write import write_genie_files
from engine.isolation.memory import usable_memory

LARGEST_AT_ONCE = 1_500_000_000  # bytes of weights under compilation; a compiler takes some seven times as much memory
SOURCES = "sources"  # folder in the unfinished bundle for the weights and ONNX graphs that binaries are made from


def binaries_stage(work: Compilation) -> None:
    """Compile every graph into a context binary, then write the wrappers that run the parts of a pass in a chain."""
    groups = binary_groups(work)
    work.progress.stage("context binaries", len(work.graphs), "graphs")
    nodes: dict[str, NodeProto] = {}
    binaries: dict[str, tuple[str, ...]] = {}
    sdk = ""
    for file, made in compile_groups(work, groups):
        binaries[file] = tuple(node.name for node in made.values())
        sdk = sdk_of(next(iter(made.values())))
        nodes.update(made)
        work.progress.advance(len(made))
    names_of_graphs = [name for names in binaries.values() for name in names]
    if len(set(names_of_graphs)) < len(names_of_graphs):
        raise CompileError("two graphs got the same name inside their binaries; they could not be told apart")
    chip = NPU_TARGETS[work.arguments.target]
    work.onnx_graphs = tuple(work.graphs)
    work.graphs[:], chains = chain(work, nodes)
    work.npu = NpuSpec(chip.soc_model, chip.htp_arch, binaries, chains, sdk)


def binary_groups(work: Compilation) -> dict[str, list[str]]:
    """File name of each binary and the graphs that go into it."""
    groups: dict[str, list[str]] = {}
    for plan in work.plans():
        part = plan.part
        shared = f"part_{part.number}_of_{part.count}.bin"
        groups.setdefault(shared if work.arguments.share_weights else f"{plan.name}.bin", []).append(plan.name)
    return groups


def compile_groups(work: Compilation, groups: dict[str, list[str]]) -> Iterator[tuple[str, dict[str, NodeProto]]]:
    """Make the binaries, several at once where processors and memory allow it; each with its context nodes."""
    largest = max(path.stat().st_size for path in work.graph_folder.iterdir())
    with ThreadPoolExecutor(at_once(largest, len(groups), os.cpu_count() or 1, usable_memory())) as pool:
        jobs = [pool.submit(compile_group, work, file, names) for file, names in groups.items()]
        try:
            for file, job in zip(groups, jobs, strict=True):
                yield file, job.result()
        finally:
            pool.shutdown(cancel_futures=True)


def at_once(largest_bytes: int, jobs: int, processors: int, memory: int = 0) -> int:
    """How many compilers may run side by side; each uses one processor. memory: bytes of the machine, 0 = unknown."""
    together = min(LARGEST_AT_ONCE, int(compilable_bytes(memory))) if memory else LARGEST_AT_ONCE
    return max(1, min(jobs, processors, together // max(1, largest_bytes)))


def compile_group(work: Compilation, file: str, names: list[str]) -> dict[str, NodeProto]:
    """Make one binary and move it into the bundle; context node by graph name."""
    folder, chip = work.graph_folder, NPU_TARGETS[work.arguments.target]
    wrappers = [folder / f"{name}_ctx.onnx" for name in names]
    run_job(
        ContextJob(
            tuple(str(folder / f"{name}.onnx") for name in names),
            tuple(map(str, wrappers)),
            chip.soc_model,
            chip.htp_arch,
            method_of(work.arguments).has_integer_blocks,
        )
    )
    nodes = {name: context_node(wrapper)[1] for name, wrapper in zip(names, wrappers, strict=True)}
    found = {binary_of(node) for node in nodes.values()}
    if len(found) != 1:
        raise CompileError(
            f"{', '.join(names)} became {len(found)} binaries instead of one: {', '.join(sorted(found))}"
        )
    (folder / found.pop()).replace(work.folder / file)
    for node in nodes.values():
        point_to(node, file)
    return nodes


Chains = dict[str, tuple[tuple[str, str], ...]]


def chain(work: Compilation, nodes: dict[str, NodeProto]) -> tuple[list[GraphSpec], Chains]:
    """One wrapper for the layers of each shape, one for each LM head; and what each of them runs."""
    specs = {spec.name: spec for spec in work.graphs}
    head = next((part for part in work.parts if part.kind is GraphKind.LMHEAD), None)
    count = 1 if head is None else 2
    body = [part for part in work.parts if part is not head]
    made, chains = [], {}
    wanted = [(shape, 1, [plan_of(part, work, shape.rows, shape.context) for part in body]) for shape in work.shapes]
    wanted += [(plan.shape, 2, [plan]) for plan in (plan_graphs(head, work.shapes) if head else ()) if plan.shape]
    for shape, number, plans in wanted:
        links = [Link(specs[plan.name], nodes[plan.name]) for plan in plans]
        spec = write_wrapper(f"{shape}_{number}_of_{count}", links, number, count, work.folder)
        made.append(spec)
        chains[spec.name] = tuple((binary_of(link.node), link.node.name) for link in links)
    return made, chains


def plan_of(part: PartPlan, work: Compilation, rows: int, context: int) -> GraphPlan:
    """The graph of a part that runs in a pass of this shape."""
    for plan in plan_graphs(part, work.shapes):
        shape = plan.shape
        assert shape is not None
        if shape.rows == rows and (shape.context == context or not plan.sees_context):
            return plan
    raise AssertionError(f"part {part.number} has no graph for {rows} rows")


def quality_stage(work: Compilation) -> None:
    """Compare with the float reference, then drop the intermediate files."""
    work.progress.stage("quality", 2 * work.arguments.parity_tokens, "tokens")
    measure_quality(work)
    shutil.rmtree(work.graph_folder)


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
