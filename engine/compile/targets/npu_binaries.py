"""Runs the jobs that make context binaries, and writes the ONNX file of one pass, in which their nodes are a chain."""

import re
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx
from onnx import AttributeProto, NodeProto, helper

from engine.bundle.manifest import GraphKind, GraphSpec, TensorSpec
from engine.compile.graphs.graph_builder import as_model, value_info
from engine.compile.targets.context import ContextJob
from engine.errors import CompileError
from engine.processes import child_environment, exit_text, module_command
from engine.runtime.qnn.environment import MISSING, PACKAGE

CONTEXT_OP = "EPContext"
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
    found = UNSUPPORTED.search(errors)
    if found:
        return f"the NPU has no operator {found[2]} (node {found[1]})"
    detail = FAILED_OPERATION.search(errors)
    words = detail[0] if detail else " ".join(errors.split())[-_LAST_WORDS:]
    return f"{words or 'no reason was given'} (it {exit_text(code)})"


def context_node(wrapper: Path) -> tuple[onnx.ModelProto, NodeProto]:
    """A wrapper and its EPContext node; CompileError when the graph did not become exactly one binary."""
    model = onnx.load(str(wrapper), load_external_data=False)
    nodes = list(model.graph.node)
    if len(nodes) != 1 or nodes[0].op_type != CONTEXT_OP:
        raise CompileError(f"{wrapper.stem} was compiled only in part: {', '.join(node.op_type for node in nodes)}")
    return model, nodes[0]


def binary_of(node: NodeProto) -> str:
    """The binary's file name as a context node has it."""
    return str(helper.get_attribute_value(_attribute(node, "ep_cache_context")).decode())


def point_to(node: NodeProto, file: str) -> None:
    """Let a context node read another file beside its wrapper."""
    _attribute(node, "ep_cache_context").s = file.encode()


def sdk_of(node: NodeProto) -> str:
    """The QNN version that made the binary."""
    return str(helper.get_attribute_value(_attribute(node, "ep_sdk_version")).decode())


def _attribute(node: NodeProto, name: str) -> AttributeProto:
    found: AttributeProto = next(attribute for attribute in node.attribute if attribute.name == name)
    return found


@dataclass(frozen=True, slots=True)
class Link:
    """One part of a pass: the graph it was written as, and its node in the wrapper."""

    spec: GraphSpec
    node: NodeProto


def write_wrapper(name: str, links: Sequence[Link], part: int, parts: int, folder: Path) -> GraphSpec:
    """Write `folder/<name>.onnx` and describe it. Tensors that one part hands to a later one stay inside it."""
    made = {tensor.name for link in links for tensor in link.spec.outputs}
    taken = {tensor.name for link in links for tensor in link.spec.inputs}
    inputs = _unique(tensor for link in links for tensor in link.spec.inputs if tensor.name not in made)
    outputs = _unique(tensor for link in links for tensor in link.spec.outputs if tensor.name not in taken)
    nodes = [link.node for link in links]
    # onnxruntime cannot infer what a context node gives, so what stays inside is declared as well.
    inner = _unique(tensor for link in links for tensor in link.spec.outputs if tensor.name in taken)
    taken_in, given, kept = ([*map(value_info, tensors)] for tensors in (inputs, outputs, inner))
    graph = helper.make_graph(nodes, name, taken_in, given, value_info=kept)
    (folder / f"{name}.onnx").write_bytes(as_model(graph).SerializeToString())
    layers = [link.spec for link in links if link.spec.first_layer is not None]
    return GraphSpec(
        name=name,
        file=f"{name}.onnx",
        kind=_kind(links, parts),
        part=part,
        parts=parts,
        inputs=inputs,
        outputs=outputs,
        rows=links[0].spec.rows,
        context=links[-1].spec.context,
        first_layer=layers[0].first_layer if layers else None,
        last_layer=layers[-1].last_layer if layers else None,
    )


def _kind(links: Sequence[Link], parts: int) -> GraphKind:
    if len(links) == 1 and links[0].spec.kind in KEPT_KINDS:
        return links[0].spec.kind
    return GraphKind.DEFAULT if parts == 1 else GraphKind.DECODER


def _unique(tensors: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    return tuple({tensor.name: tensor for tensor in tensors}.values())
