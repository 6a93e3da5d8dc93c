"""Runs the jobs that make context binaries, and turns their failures into sentences."""

import re
import subprocess
from pathlib import Path

import msgspec
import onnx
from onnx import AttributeProto, NodeProto, helper

from engine.compile.npu.context import ContextJob
from engine.errors import CompileError
from engine.processes import child_environment, module_command
from engine.qnn.library import MISSING, PACKAGE

CONTEXT_OP = "EPContext"
UNSUPPORTED = re.compile(r"Unsupported nodes in QNN EP: \{ name: (\S+), type: (\w+) \}")
FAILED_OPERATION = re.compile(r"(?:Failed to (?:validate|finalize|add)|[Vv]alidation failed).{0,200}")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LAST_WORDS = 600


def run_job(job: ContextJob) -> None:
    """Make one binary in a process of its own. CompileError names the graph and, where it is told, the operator."""
    command = module_command("engine.compile.npu.context", msgspec.json.encode(job).decode())
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
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    return f"{words or 'no reason was given'} ({how})"


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
