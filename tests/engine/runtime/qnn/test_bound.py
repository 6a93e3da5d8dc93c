"""Names as the provider binds them: known ones as they are, others by position."""

from pathlib import Path

import pytest

from engine.errors import BundleError
from engine.runtime.qnn.binary import BinaryGraph, BinaryTensor, ContextNode, as_bound, bound_graph, write_wrapper
from tests.engine.runtime.test_onnx_qnn import TWO, bundle, infos

GRAPH = BinaryGraph(
    "g",
    (BinaryTensor("mask", "uint16", (1, 8)), BinaryTensor("hidden_of_mine", "uint16", (8, 4))),
    (BinaryTensor("logits", "uint16", (8, 9)),),
)


def names(*inputs: str) -> list[str]:
    node = ContextNode("g", "a.bin", inputs, ("logits",))
    return [tensor.name for tensor in bound_graph(GRAPH, node, "w.onnx").inputs]


def test_known_names_may_come_in_any_order() -> None:
    assert names("hidden_of_mine", "mask") == ["mask", "hidden_of_mine"]


def test_an_unknown_name_goes_by_position() -> None:
    assert names("mask", "hidden_of_the_part_before") == ["mask", "hidden_of_the_part_before"]


def test_a_missing_tensor_is_refused() -> None:
    with pytest.raises(BundleError, match=r"w\.onnx gives graph g 1 tensors on one side, it has 2"):
        names("mask")


def test_a_wrapper_must_run_what_the_manifest_says(tmp_path: Path) -> None:
    first = ContextNode("g1", "a.bin", ("input_ids", "past_key_0_in"), ("hidden_states", "past_key_0_out"))
    second = ContextNode("g2", "b.bin", ("hidden_states",), ("logits",))
    write_wrapper(tmp_path / "w.onnx", [first, second], [], [])
    assert as_bound(tmp_path, bundle(TWO), infos()) == infos()
    write_wrapper(tmp_path / "w.onnx", [first, ContextNode("g2", "c.bin", ("hidden_states",), ("logits",))], [], [])
    with pytest.raises(BundleError, match=r"w\.onnx runs .*, g2 of c\.bin, the manifest says .*, g2 of b\.bin"):
        as_bound(tmp_path, bundle(TWO), infos())
