"""What a QNN context binary holds, other names for its graphs, and ONNX files that wrap binaries.
The provider names graphs by a hash; Genie wants `ar<rows>_cl<columns>_<part>_of_<parts>` as soon as there are several
parts. A name is stored as text without a checksum, so one of equal length can take its place (read back by QnnSystem
and run by the HTP emulator, QNN 2.51).
A wrapper has one `com.microsoft::EPContext` node for each part, chained by tensor names. The package onnx is imported
where one is written or read: what serves other bundles needs none."""

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from engine.bundle.manifest import Manifest, TensorSpec
from engine.bundle.specs import Axis, Count, Name, Text
from engine.bundle.tensors import INTEGERS
from engine.errors import BundleError
from engine.files import read_bytes

if TYPE_CHECKING:
    from onnx import NodeProto


class QnnEncoding(msgspec.Struct, frozen=True, omit_defaults=True):
    """real = scale * (q + offset), QNN's sign: offset = -zero_point. One entry, or one for each index along `axis`."""

    scales: tuple[float, ...]
    offsets: tuple[int, ...]
    axis: int | None = None


class BinaryTensor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A graph input or output. dtype is numpy's name; data_format 0 is dense, anything else a private layout."""

    name: Name
    dtype: Name
    shape: Annotated[tuple[Axis, ...], Meta(max_length=8)]
    data_format: Count = 0
    encoding: QnnEncoding | None = None

    def spec(self) -> TensorSpec:
        if self.encoding is None or self.dtype not in INTEGERS:
            return TensorSpec(self.name, self.dtype, self.shape)
        return TensorSpec(self.name, self.dtype, self.shape, self.encoding.scales[0], -self.encoding.offsets[0])


class BinaryGraph(msgspec.Struct, frozen=True):
    """One graph; tensors in the binary's own order, which differs between binaries."""

    name: Name
    inputs: tuple[BinaryTensor, ...]
    outputs: tuple[BinaryTensor, ...]


class BinaryInfo(msgspec.Struct, frozen=True):
    """One context binary. build_id: the QAIRT version that wrote it."""

    build_id: Text
    graphs: tuple[BinaryGraph, ...]


FILLER = "hexserve"


def padded(name: str, length: int) -> str:
    """A graph name with letters in front so that it has `length` characters. BundleError when it is too long."""
    room = length - len(name) - 1
    if room < 1:
        raise BundleError(f"graph name {name} does not fit into {length} characters")
    return f"{(FILLER * room)[:room]}_{name}"


def rename_graphs(path: Path, names: Mapping[str, str]) -> None:
    """Replace names, old to new, wherever they stand in a binary or a wrapper. BundleError when one is not there."""
    for old, new in names.items():
        if len(old.encode()) != len(new.encode()):
            raise BundleError(f"graph name {new} must be as long as {old}")
    with path.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
        for old, new in names.items():
            position = content.find(old.encode())
            if position < 0:
                raise BundleError(f"{path.name} has no graph named {old}")
            while position >= 0:
                content[position : position + len(old)] = new.encode()
                position = content.find(old.encode(), position)


DOMAIN = "com.microsoft"
OPERATOR, TEXTS = "EPContext", ("ep_cache_context", "source", "ep_sdk_version")
GRAPH_NAME = "qnn-onnx-model"
# What the QNN provider claims, compared without case; a node of another source is left to the CPU, which has none.
SOURCES = ("qnn", "qnnexecutionprovider")
SOURCE = "Qnn"
IR_VERSION = 10
OPSET = 18
MAX_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ContextNode:
    """One graph of one binary. inputs, outputs: value names in the binary's own order.
    The provider binds a value whose name the binary does not know by its position, hence the order."""

    graph: str
    binary: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str = SOURCE
    sdk_version: str = ""


def write_wrapper(
    path: Path,
    nodes: "Sequence[ContextNode | NodeProto]",
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    between: Sequence[TensorSpec] = (),
) -> None:
    """Write a model of chained nodes. Binaries are named relative to the wrapper's folder, without '..'.
    nodes: those of onnx's are written as they are. between: values that go from node to node; their types cannot be
    inferred."""
    from onnx import helper  # noqa: PLC0415 (an extra)

    def node_of(node: ContextNode) -> Any:
        texts = dict(zip(TEXTS, (node.binary, node.source, node.sdk_version), strict=True))
        attributes: dict[str, Any] = {name: text for name, text in texts.items() if text}
        attributes |= {"embed_mode": 0, "main_context": 1}
        return helper.make_node(OPERATOR, node.inputs, node.outputs, node.graph, domain=DOMAIN, **attributes)

    def values(specs: Sequence[TensorSpec]) -> list[Any]:
        types = {spec.dtype: helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype)) for spec in specs}
        return [helper.make_tensor_value_info(spec.name, types[spec.dtype], list(spec.shape)) for spec in specs]

    made = [node_of(node) if isinstance(node, ContextNode) else node for node in nodes]
    graph = helper.make_graph(made, GRAPH_NAME, values(inputs), values(outputs), value_info=values(between))
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, producer_name="hexserve", ir_version=IR_VERSION, opset_imports=opsets)
    path.write_bytes(model.SerializeToString())


def read_wrapper(path: Path) -> tuple[ContextNode, ...]:
    """The EPContext nodes of an ONNX file, () when it has none. BundleError when it is not an ONNX file."""
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415 (what onnx raises)
    from onnx import load_model  # noqa: PLC0415 (an extra)

    try:
        if path.stat().st_size > MAX_BYTES:
            return ()
        model = load_model(BytesIO(read_bytes(path, MAX_BYTES)), load_external_data=False)
        found = []
        for node in model.graph.node:
            told = {attribute.name: attribute.s.decode() for attribute in node.attribute}
            if node.op_type == OPERATOR:
                texts = [told.get(name, "") for name in TEXTS]
                found.append(ContextNode(node.name, texts[0], tuple(node.input), tuple(node.output), *texts[1:]))
        return tuple(found)
    except (OSError, DecodeError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} is not an ONNX file: {error}") from error


def check_source(node: ContextNode, file: str) -> None:
    """BundleError when the QNN provider would not claim a node."""
    if node.source.lower() not in SOURCES:
        source = node.source or "an unnamed provider"
        raise BundleError(f"{file}: node {node.graph} was compiled for {source}, not for QNN")


def as_bound(folder: Path, manifest: Manifest, infos: Mapping[str, BinaryInfo]) -> dict[str, BinaryInfo]:
    """The descriptions with the wrappers' names in place of the binaries' own, where they differ.
    infos: by file name. BundleError for a wrapper of another provider, one with other numbers of tensors, or one that
    runs other graphs than the manifest says: its own binaries are what would be loaded."""
    assert manifest.npu is not None
    nodes: dict[tuple[str, str], tuple[ContextNode, str]] = {}
    for graph in manifest.every_graph:
        found, told = read_wrapper(folder / graph.file), manifest.npu.chains.get(graph.name, ())
        runs = tuple((node.binary, node.graph) for node in found)
        if told and runs != told:
            raise BundleError(f"{graph.file} runs {_words(runs)}, the manifest says {_words(told)}")
        nodes |= {(node.binary, node.graph): (node, graph.file) for node in found}
    for node, file in nodes.values():
        check_source(node, file)
    bound: dict[str, BinaryInfo] = {}
    for file, info in infos.items():
        graphs = [
            bound_graph(graph, *nodes[file, graph.name]) if (file, graph.name) in nodes else graph
            for graph in info.graphs
        ]
        bound[file] = msgspec.structs.replace(info, graphs=tuple(graphs))
    return bound


def bound_graph(graph: BinaryGraph, node: ContextNode, wrapper: str) -> BinaryGraph:
    """The provider takes a name that the binary knows, and goes by position otherwise."""
    sides = (graph.inputs, node.inputs), (graph.outputs, node.outputs)
    return BinaryGraph(graph.name, *(_side(*side, wrapper, graph.name) for side in sides))


def _words(links: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{graph} of {binary}" for binary, graph in links) or "no binary"


def _side(
    tensors: tuple[BinaryTensor, ...], values: tuple[str, ...], wrapper: str, graph: str
) -> tuple[BinaryTensor, ...]:
    if len(tensors) != len(values):
        raise BundleError(f"{wrapper} gives graph {graph} {len(values)} tensors on one side, it has {len(tensors)}")
    known = {tensor.name for tensor in tensors}
    if known == set(values):
        return tensors
    return tuple(
        tensor if tensor.name in values else msgspec.structs.replace(tensor, name=value)
        for tensor, value in zip(tensors, values, strict=True)
    )
