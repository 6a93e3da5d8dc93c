"""EPContext wrappers written without the onnx package are what the onnx package reads, and the other way round."""

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from engine.bundle.manifest import TensorSpec
from engine.errors import BundleError
from engine.runtime.qnn.binary import ContextNode, check_source, read_wrapper, write_wrapper

NODES = (
    ContextNode("ar1_cl64_1_of_2", "part1.bin", ("input_ids",), ("hidden",), sdk_version="v2.51.0"),
    ContextNode("ar1_cl64_2_of_2", "part2.bin", ("hidden", "attention_mask"), ("logits",)),
)
IDS = TensorSpec("input_ids", "int32", (1, 1))
MASK = TensorSpec("attention_mask", "uint16", (1, 1, 1, 300), 0.1, 65535)
HIDDEN = TensorSpec("hidden", "uint16", (1, 1, 64), 0.1, 32768)
LOGITS = TensorSpec("logits", "float16", (1, 1, 151_936))


def test_onnx_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "wrapper.onnx"
    write_wrapper(path, NODES, (IDS, MASK), (LOGITS,), (HIDDEN,))
    model = onnx.load(str(path))
    values = {value.name: value.type.tensor_type for value in [*model.graph.input, *model.graph.output]}
    shapes = {name: tuple(dim.dim_value for dim in kind.shape.dim) for name, kind in values.items()}
    assert shapes == {spec.name: spec.shape for spec in (IDS, MASK, LOGITS)}
    kinds = {"input_ids": TensorProto.INT32, "attention_mask": TensorProto.UINT16, "logits": TensorProto.FLOAT16}
    assert {name: kind.elem_type for name, kind in values.items()} == kinds
    assert [value.name for value in model.graph.value_info] == ["hidden"]
    first, second = model.graph.node
    assert (first.op_type, first.domain, first.name) == ("EPContext", "com.microsoft", "ar1_cl64_1_of_2")
    assert list(second.input) == ["hidden", "attention_mask"]
    attributes = {item.name: helper.get_attribute_value(item) for item in first.attribute}
    assert attributes == {
        "ep_cache_context": b"part1.bin",
        "source": b"Qnn",
        "ep_sdk_version": b"v2.51.0",
        "embed_mode": 0,
        "main_context": 1,
    }
    onnx.checker.check_model(model)


def test_it_reads_its_own_and_those_of_onnx(tmp_path: Path) -> None:
    write_wrapper(tmp_path / "own.onnx", NODES, (IDS,), (LOGITS,))
    assert read_wrapper(tmp_path / "own.onnx") == NODES
    node = helper.make_node(
        "EPContext", ["a"], ["b"], name="g", domain="com.microsoft", ep_cache_context="x.bin", source="OpenVINO"
    )
    other = helper.make_node("Relu", ["b"], ["c"])
    value = helper.make_tensor_value_info("a", TensorProto.FLOAT, [1])
    onnx.save(helper.make_model(helper.make_graph([node, other], "g", [value], [])), str(tmp_path / "onnx.onnx"))
    assert read_wrapper(tmp_path / "onnx.onnx") == (ContextNode("g", "x.bin", ("a",), ("b",), "OpenVINO"),)


def test_another_providers_context_is_refused() -> None:
    for source in ("Qnn", "QNN", "QNNExecutionProvider"):
        check_source(ContextNode("g", "x.bin", (), (), source), "w.onnx")
    with pytest.raises(BundleError, match=r"w\.onnx: node g was compiled for OpenVINO, not for QNN"):
        check_source(ContextNode("g", "x.bin", (), (), "OpenVINO"), "w.onnx")
    with pytest.raises(BundleError, match="an unnamed provider"):
        check_source(ContextNode("g", "x.bin", (), (), ""), "w.onnx")


@pytest.mark.parametrize("content", [b"\x3a\xff\xff\xff\xff\x0f", b"\x3a\x05ab", b"\x0b", b"\xff" * 12])
def test_what_is_no_onnx_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(BundleError, match="is not an ONNX file"):
        read_wrapper(tmp_path / "bad.onnx")
