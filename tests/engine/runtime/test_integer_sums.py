"""Whether sums of 8-bit products are exact, beside sums that are made of the operator's own answers."""

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.runtime import sessions
from engine.runtime.integer_sums import PRODUCT, cuts_sums


def test_what_is_found_of_two_products_holds_for_many() -> None:
    """All weights 127, all inputs 255, many rows: more than the model that is looked at has."""
    weights = numpy_helper.from_array(np.full((64, 48), 127, np.int8), "b")
    found = product(weights, np.full((5, 64), 255, np.uint8))
    assert (found == 64 * 255 * 127).all() == (not cuts_sums(has_shared_pool=False))


@pytest.mark.parametrize("cuts", [True, False])
def test_a_server_whose_processor_cuts_sums_multiplies_exactly(
    cuts: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where it is told so onnxruntime converts weights, on processors that do not cut as well: that is slower."""
    monkeypatch.setattr(sessions, "cuts_sums", lambda _: cuts)
    path = tmp_path / "m.onnx"
    path.write_bytes(model(numpy_helper.from_array(np.full((64, 48), 127, np.int8), "b"), 5))
    session = sessions.cpu_provider(1).open(path)
    (found,) = session.run(None, {"a": np.full((5, 64), 255, np.uint8)})
    assert (np.asarray(found) == 64 * 255 * 127).all() == (cuts or not cuts_sums(has_shared_pool=False))


def test_the_stored_model_is_what_its_comment_says() -> None:
    assert model(numpy_helper.from_array(np.full((2, 1), 127, np.int8), "b"), 1) == PRODUCT


def product(weights: TensorProto, inputs: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model(weights, len(inputs)), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"a": inputs})[0])


def model(weights: TensorProto, rows: int) -> bytes:
    inputs, outputs = weights.dims
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    a = helper.make_tensor_value_info("a", TensorProto.UINT8, [rows, inputs])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [rows, outputs])
    graph = helper.make_graph([node], "p", [a], [y], [weights])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=7, producer_name="")
    return bytes(made.SerializeToString())
