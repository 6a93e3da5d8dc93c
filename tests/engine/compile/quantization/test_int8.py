"""8-bit integers against their definition, and the product against onnxruntime."""

import numpy as np
from onnx import TensorProto, helper

from engine.compile.quantization.int8 import INT8_LIMIT, int8_columns
from tests.engine.compile.quantization.operators import run_node, weights


def test_int8_columns() -> None:
    """Within half a step, input-major, in the range that cannot saturate."""
    matrix = weights()
    integers, scales = int8_columns(matrix)
    assert integers.shape == (96, 24) and integers.flags.c_contiguous
    assert np.abs(integers.astype(int)).max() == INT8_LIMIT
    assert (np.abs(integers.T * scales[:, None] - matrix) <= 0.501 * scales[:, None]).all()


def test_int8_range_is_exact_on_every_machine() -> None:
    """The worst sums of the 16-bit pair addition: onnxruntime's product must be the integer product."""
    x = np.full((3, 64), 255, np.uint8)
    w = np.full((64, 32), -INT8_LIMIT, np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])
    result = run_node(node, {"w": w, "z": np.array(0, np.uint8)}, x, 32, TensorProto.INT32)
    assert np.array_equal(result, x.astype(np.int32) @ w.astype(np.int32))
