"""Names as the provider binds them: known ones as they are, others by position."""

import pytest

from engine.errors import BundleError
from engine.qnn.binary import BinaryGraph, BinaryTensor
from engine.qnn.bound import bound_graph
from engine.qnn.ep_context import ContextNode

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
