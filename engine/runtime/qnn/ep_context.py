"""ONNX files that wrap context binaries: one `com.microsoft::EPContext` node for each part, chained by tensor names.

Written and read without the onnx package, so that serving needs no compiler. Format: onnx.proto and the EPContext
operator of onnxruntime's contrib schemas.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest, TensorSpec
from engine.errors import BundleError
from engine.files import read_bytes
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor

# Wire format of Protocol Buffers: protobuf.dev/programming-guides/encoding.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class ProtobufError(Exception):
    """The bytes are not a message."""


def number(field: int, value: int) -> bytes:
    """A non-negative integer field."""
    return _varint(field << 3 | VARINT) + _varint(value)


def blob(field: int, value: bytes | str) -> bytes:
    """A string, bytes or message field."""
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | BYTES) + _varint(len(raw)) + raw


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) in order; integers for number fields, else bytes. ProtobufError when it is no message."""
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        kind = key & 7
        if kind == VARINT:
            value, position = _read_varint(message, position)
            yield key >> 3, value
            continue
        if kind == BYTES:
            size, position = _read_varint(message, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ProtobufError(f"wire type {kind}")
        if position + size > len(message):
            raise ProtobufError("a field runs past the end")
        yield key >> 3, message[position : position + size]
        position += size


def _varint(value: int) -> bytes:
    assert value >= 0
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise ProtobufError("a number runs past the end")


DOMAIN = "com.microsoft"
OPERATOR = "EPContext"
GRAPH_NAME = "qnn-onnx-model"
# What the QNN provider claims, compared without case; a node of another source is left to the CPU, which has none.
SOURCES = ("qnn", "qnnexecutionprovider")
SOURCE = "Qnn"
IR_VERSION = 10
OPSET = 18
MAX_BYTES = 512 * 1024 * 1024

ELEMENT_TYPES = {
    "bool": 9,
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "float16": 10,
    "uint32": 12,
}
_ATTRIBUTE_INT, _ATTRIBUTE_STRING = 2, 3


@dataclass(frozen=True, slots=True)
class ContextNode:
    """One graph of one binary. inputs, outputs: value names in the binary's own order.

    The provider binds a value whose name the binary does not know by its position, hence the order.
    """

    graph: str
    binary: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    source: str = SOURCE
    sdk_version: str = ""


def write_wrapper(
    path: Path,
    nodes: Sequence[ContextNode],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    between: Sequence[TensorSpec] = (),
) -> None:
    """Write a model of chained nodes. Binaries are named relative to the wrapper's folder, without '..'.

    between: values that go from node to node; their types cannot be inferred.
    """
    graph = b"".join(blob(1, _node(node)) for node in nodes) + blob(2, GRAPH_NAME)
    graph += b"".join(blob(11, _value(spec)) for spec in inputs)
    graph += b"".join(blob(12, _value(spec)) for spec in outputs)
    graph += b"".join(blob(13, _value(spec)) for spec in between)
    opsets = blob(8, blob(1, "") + number(2, OPSET)) + blob(8, blob(1, DOMAIN) + number(2, 1))
    path.write_bytes(number(1, IR_VERSION) + blob(2, "hexserve") + blob(7, graph) + opsets)


def read_wrapper(path: Path) -> tuple[ContextNode, ...]:
    """The EPContext nodes of an ONNX file, () when it has none. BundleError when it is not an ONNX file."""
    try:
        if path.stat().st_size > MAX_BYTES:
            return ()
        content = read_bytes(path, MAX_BYTES)
        graphs = [value for field, value in fields(content) if field == 7 and isinstance(value, bytes)]
        nodes = [value for graph in graphs for field, value in fields(graph) if field == 1]
        return tuple(found for node in nodes if isinstance(node, bytes) for found in _context_node(node))
    except (OSError, ProtobufError, UnicodeDecodeError) as error:
        raise BundleError(f"{path} is not an ONNX file: {error}") from error


def check_source(node: ContextNode, file: str) -> None:
    """BundleError when the QNN provider would not claim a node."""
    if node.source.lower() not in SOURCES:
        raise BundleError(
            f"{file}: node {node.graph} was compiled for {node.source or 'an unnamed provider'}, not for QNN"
        )


def _node(node: ContextNode) -> bytes:
    out = b"".join(blob(1, name) for name in node.inputs) + b"".join(blob(2, name) for name in node.outputs)
    out += blob(3, node.graph) + blob(4, OPERATOR) + blob(7, DOMAIN)
    texts = {"ep_cache_context": node.binary, "source": node.source, "ep_sdk_version": node.sdk_version}
    out += b"".join(
        blob(5, blob(1, name) + blob(4, text) + number(20, _ATTRIBUTE_STRING)) for name, text in texts.items() if text
    )
    numbers = {"embed_mode": 0, "main_context": 1}
    return out + b"".join(
        blob(5, blob(1, name) + number(3, value) + number(20, _ATTRIBUTE_INT)) for name, value in numbers.items()
    )


def _value(spec: TensorSpec) -> bytes:
    dims = b"".join(blob(1, number(1, dim)) for dim in spec.shape if isinstance(dim, int))
    tensor = number(1, ELEMENT_TYPES[spec.dtype]) + blob(2, dims)
    return blob(1, spec.name) + blob(2, blob(1, tensor))


def _context_node(node: bytes) -> Iterator[ContextNode]:
    names: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}
    attributes: dict[str, str] = {}
    for field, value in fields(node):
        if isinstance(value, bytes) and field in names:
            names[field].append(value.decode())
        elif isinstance(value, bytes) and field == 5:
            parts = {key: part.decode() for key, part in fields(value) if key in (1, 4) and isinstance(part, bytes)}
            attributes[parts.get(1, "")] = parts.get(4, "")
    if names[4] == [OPERATOR]:
        yield ContextNode(
            graph="".join(names[3]),
            binary=attributes.get("ep_cache_context", ""),
            inputs=tuple(names[1]),
            outputs=tuple(names[2]),
            source=attributes.get("source", ""),
            sdk_version=attributes.get("ep_sdk_version", ""),
        )


def as_bound(folder: Path, manifest: Manifest, infos: Mapping[str, BinaryInfo]) -> dict[str, BinaryInfo]:
    """The descriptions with the wrappers' names in place of the binaries' own, where they differ.

    infos: by file name. BundleError for a wrapper of another provider, one with other numbers of tensors, or one that
    runs other graphs than the manifest says: its own binaries are what would be loaded.
    """
    assert manifest.npu is not None
    nodes: dict[tuple[str, str], tuple[ContextNode, str]] = {}
    for graph in manifest.graphs:
        found, told = read_wrapper(folder / graph.file), manifest.npu.chains.get(graph.name, ())
        runs = tuple((node.binary, node.graph) for node in found)
        if told and runs != told:
            raise BundleError(f"{graph.file} runs {_words(runs)}, the manifest says {_words(told)}")
        nodes |= {(node.binary, node.graph): (node, graph.file) for node in found}
    for node, file in nodes.values():
        check_source(node, file)
    return {file: _renamed(file, info, nodes) for file, info in infos.items()}


def bound_graph(graph: BinaryGraph, node: ContextNode, wrapper: str) -> BinaryGraph:
    """The provider takes a name that the binary knows, and goes by position otherwise."""
    return BinaryGraph(
        graph.name,
        _side(graph.inputs, node.inputs, wrapper, graph.name),
        _side(graph.outputs, node.outputs, wrapper, graph.name),
    )


def _words(links: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{graph} of {binary}" for binary, graph in links) or "no binary"


def _renamed(file: str, info: BinaryInfo, nodes: Mapping[tuple[str, str], tuple[ContextNode, str]]) -> BinaryInfo:
    graphs = []
    for graph in info.graphs:
        node, wrapper = nodes.get((file, graph.name), (None, ""))
        graphs.append(graph if node is None else bound_graph(graph, node, wrapper))
    return msgspec.structs.replace(info, graphs=tuple(graphs))


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
