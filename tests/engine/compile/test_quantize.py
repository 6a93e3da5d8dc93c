"""Integers and scales against their definitions, and against onnxruntime's reading of the layouts."""

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.compile.quantize import (
    INT8_LIMIT,
    int4_blocks,
    int8_columns,
    int8_rows,
    pack_nibbles,
    unpack_nibbles,
)


def weights(outputs: int = 24, inputs: int = 96) -> np.ndarray:
    """A matrix with one row of zeros and one outlier."""
    matrix = np.random.default_rng(1).standard_normal((outputs, inputs)).astype(np.float32)
    matrix[3], matrix[5, 7] = 0, 30
    return matrix


def dequantized(matrix: np.ndarray, block: int, asymmetric: bool) -> np.ndarray:
    """What the stored int4 form stands for, by its definition."""
    blocks = int4_blocks(matrix, block, asymmetric)
    codes = unpack_nibbles(blocks.packed).astype(np.float32)
    zeros = np.full(blocks.scales.shape, 8.0)
    if blocks.zero_points is not None:
        zeros = unpack_nibbles(blocks.zero_points)[:, : zeros.shape[1]]
    values = (codes - zeros[:, :, None]) * blocks.scales[:, :, None]
    return values.reshape(len(matrix), -1)


def test_nibbles_round_trip() -> None:
    """Low half first."""
    codes = np.arange(16, dtype=np.uint8).reshape(1, 16)
    assert pack_nibbles(codes)[0, 0] == 0x10
    assert np.array_equal(unpack_nibbles(pack_nibbles(codes)), codes)


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("inputs", [96, 100])
def test_int4_error_is_at_most_a_step(block: int, asymmetric: bool, inputs: int) -> None:
    """Half a step, or one where the one-sided range ends; padding stays zero."""
    matrix = weights(inputs=inputs)
    restored = dequantized(matrix, block, asymmetric)
    steps = np.repeat(np.abs(int4_blocks(matrix, block, asymmetric).scales), block, axis=1)
    padded = np.pad(matrix, ((0, 0), (0, restored.shape[1] - inputs)))
    assert (np.abs(restored - padded) <= 1.01 * steps).all()
    assert np.abs(restored - padded).mean() < 0.3 * steps.mean()
    assert not restored[:, inputs:].any() and not restored[3].any()


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("inputs", [96, 100, 160])
def test_int4_layout_is_the_operators(asymmetric: bool, inputs: int) -> None:
    """MatMulNBits with float accuracy computes with exactly the restored weights."""
    matrix = weights(inputs=inputs)
    blocks = int4_blocks(matrix, 32, asymmetric)
    tensors = {"w": blocks.packed, "s": blocks.scales}
    if blocks.zero_points is not None:
        tensors["z"] = blocks.zero_points
    node = helper.make_node(
        "MatMulNBits", ["x", *tensors], ["y"], domain="com.microsoft", K=inputs, N=24, bits=4, block_size=32
    )
    x = np.random.default_rng(2).standard_normal((5, inputs)).astype(np.float32)
    result = run_node(node, tensors, x, 24)
    assert np.allclose(result, x @ dequantized(matrix, 32, asymmetric)[:, :inputs].T, atol=1e-4)


def test_int8_columns() -> None:
    """Within half a step, input-major, in the range that cannot saturate."""
    matrix = weights()
    integers, scales = int8_columns(matrix)
    assert integers.shape == (96, 24) and integers.flags.c_contiguous
    assert np.abs(integers.astype(int)).max() == INT8_LIMIT
    assert (np.abs(integers.T * scales[:, None] - matrix) <= 0.501 * scales[:, None]).all()


def test_int8_rows() -> None:
    """A row of a table has its own scale."""
    matrix = weights()
    integers, scales = int8_rows(matrix)
    assert scales.shape == (24, 1)
    assert (np.abs(integers * scales - matrix) <= 0.501 * scales).all()


def test_int8_range_is_exact_on_every_machine() -> None:
    """The worst sums of the 16-bit pair addition: onnxruntime's product must be the integer product."""
    x = np.full((3, 64), 255, np.uint8)
    w = np.full((64, 32), -INT8_LIMIT, np.int8)
    node = helper.make_node("MatMulInteger", ["x", "w", "z"], ["y"])
    result = run_node(node, {"w": w, "z": np.array(0, np.uint8)}, x, 32, TensorProto.INT32)
    assert np.array_equal(result, x.astype(np.int32) @ w.astype(np.int32))


def run_node(
    node: object, tensors: dict[str, np.ndarray], x: np.ndarray, outputs: int, kind: int = TensorProto.FLOAT
) -> np.ndarray:
    """One operator on the CPU provider."""
    entry = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), list(x.shape))
    result = helper.make_tensor_value_info("y", kind, [len(x), outputs])
    initializers = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = helper.make_graph([node], "one", [entry], [result], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]
