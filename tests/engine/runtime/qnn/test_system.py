"""The structures of QnnSystem: read from memory laid out by hand, guarded by version, and from real binaries."""

import ctypes
import importlib.util
import struct
from pathlib import Path

import pytest

from engine.errors import BundleError
from engine.runtime.qnn.binary import BinaryTensor, QnnEncoding, padded, rename_graphs
from engine.runtime.qnn.describe import (
    BINARY_INFO_VERSION,
    GRAPH_INFO_VERSION,
    GRAPH_STRIDE,
    TENSOR_STRIDE,
    LayoutError,
    described,
)
from engine.runtime.qnn.environment import library_path
from engine.runtime.qnn.reader import describe_binary, runtime_version

INSTALLED = importlib.util.find_spec("onnxruntime_qnn") is not None


class Memory:
    """Structures at real addresses."""

    def __init__(self) -> None:
        self._kept: list[object] = []

    def put(self, content: bytes) -> int:
        buffer = ctypes.create_string_buffer(content, len(content) + 1)
        self._kept.append(buffer)
        return ctypes.addressof(buffer)

    def tensor(
        self, name: str, kind: int, dtype: int, dims: tuple[int, ...], encoding: bytes = b"", version: int = 1
    ) -> bytes:
        head = struct.pack("<II", version, 0) + b"\0" * 8 + struct.pack("<Q", self.put(name.encode()))
        head += struct.pack("<III", kind, 0, dtype) + b"\0" * 4
        head += encoding.ljust(40, b"\0") if encoding else struct.pack("<II", 0x7FFFFFFF, 0x7FFFFFFF).ljust(40, b"\0")
        head += struct.pack("<I4xQ", len(dims), self.put(struct.pack(f"<{len(dims)}I", *dims)))
        return head.ljust(TENSOR_STRIDE, b"\0")

    def graph(self, name: str, inputs: list[bytes], outputs: list[bytes], version: int = GRAPH_INFO_VERSION) -> bytes:
        body = struct.pack("<I4xQ", version, self.put(name.encode()))
        for tensors in (inputs, outputs):
            body += struct.pack("<I4xQ", len(tensors), self.put(b"".join(tensors)))
        return body.ljust(GRAPH_STRIDE, b"\0")

    def info(self, graphs: list[bytes], version: int = BINARY_INFO_VERSION) -> int:
        body = struct.pack("<I4xI4xQ", version, 6, self.put(b"v2.51.0")) + struct.pack("<6I", 2, 40, 0, 1, 2, 3)
        body += struct.pack("<Q", 0).ljust(48, b"\0")
        return self.put(body + struct.pack("<I4xQ", len(graphs), self.put(b"".join(graphs))))


def per_tensor(scale: float, offset: int) -> bytes:
    return struct.pack("<IIfi", 1, 0, scale, offset)


def test_a_graph_is_read() -> None:
    memory = Memory()
    pairs = memory.put(struct.pack("<fifi", 0.5, 0, 0.25, -3))
    per_axis = struct.pack("<IIiIQ", 1, 1, 2, 2, pairs)
    inputs = [
        memory.tensor("input_ids", 0, 0x0032, (1, 8)),
        memory.tensor("past_key_0_in", 0, 0x0408, (2, 1, 32, 56), per_tensor(0.25, -128)),
        memory.tensor("weights", 0, 0x0308, (4, 2), per_axis, version=2),
    ]
    outputs = [memory.tensor("logits", 1, 0x0416, (1, 8, 300), per_tensor(0.5, -32768))]
    info = described(memory.info([memory.graph("ar8_cl64_1_of_1", inputs, outputs)]))
    assert info.build_id == "v2.51.0"
    (graph,) = info.graphs
    assert graph.name == "ar8_cl64_1_of_1"
    assert graph.inputs == (
        BinaryTensor("input_ids", "int32", (1, 8)),
        BinaryTensor("past_key_0_in", "uint8", (2, 1, 32, 56), 0, QnnEncoding((0.25,), (-128,))),
        BinaryTensor("weights", "int8", (4, 2), 0, QnnEncoding((0.5, 0.25), (0, -3), 2)),
    )
    assert graph.outputs == (BinaryTensor("logits", "uint16", (1, 8, 300), 0, QnnEncoding((0.5,), (-32768,))),)


def broken(memory: Memory, case: str) -> int:
    tensor = memory.tensor("x", 1 if case == "kind" else 0, 0x9999 if case == "dtype" else 0x0032, (1,))
    if case == "rank":
        tensor = memory.tensor("x", 0, 0x0032, (1,) * 9)
    if case == "tensor":
        tensor = memory.tensor("x", 0, 0x0032, (1,), version=9)
    if case == "encoding":
        tensor = memory.tensor("x", 0, 0x0408, (1,), struct.pack("<II", 1, 4))
    if case == "text":
        tensor = memory.tensor("x\x01", 0, 0x0032, (1,))
    graph = memory.graph("g", [tensor], [], 2 if case == "graph" else GRAPH_INFO_VERSION)
    return memory.info([graph], 4 if case == "info" else BINARY_INFO_VERSION)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("info", "its description has layout 4; layout 3 is known here"),
        ("graph", "a graph's description has layout 2"),
        ("tensor", "a tensor's description has layout 9"),
        ("kind", "tensor x is of kind 1 among those of kind 0"),
        ("dtype", "tensor x has the unknown data type 0x9999"),
        ("rank", "9 dimensions of x, more than the 8"),
        ("encoding", "tensor x has the unknown quantisation encoding 4"),
        ("text", "a tensor's name is not text"),
    ],
)
def test_unknown_layouts_are_refused(case: str, message: str) -> None:
    memory = Memory()
    with pytest.raises(LayoutError, match=message):
        described(broken(memory, case))


@pytest.mark.skipif(not INSTALLED, reason="needs onnxruntime-qnn")
def test_the_installed_library(tmp_path: Path) -> None:
    assert library_path("QnnSystem").is_file()
    assert runtime_version().startswith("2.")
    with pytest.raises(BundleError, match=r"onnxruntime-qnn .* has no libNothing\.so"):
        library_path("Nothing")
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 100)
    with pytest.raises(BundleError, match=r"noise\.bin cannot be read: it is not a context binary"):
        describe_binary(tmp_path / "noise.bin", tmp_path)


def test_graphs_are_renamed_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"..long_graph_name_1..long_graph_name_2..long_graph_name_1.")
    new = padded("ar1_cl64_1_of_2", len("long_graph_name_1"))
    assert new == "h_ar1_cl64_1_of_2"
    rename_graphs(path, {"long_graph_name_1": new})
    assert path.read_bytes() == b"..h_ar1_cl64_1_of_2..long_graph_name_2..h_ar1_cl64_1_of_2."
    with pytest.raises(BundleError, match="has no graph named long_graph_name_3"):
        rename_graphs(path, {"long_graph_name_3": new})
    with pytest.raises(BundleError, match="must be as long as"):
        rename_graphs(path, {"long_graph_name_2": "short"})
    with pytest.raises(BundleError, match="does not fit into 10 characters"):
        padded("ar1_cl64_1_of_2", 10)
