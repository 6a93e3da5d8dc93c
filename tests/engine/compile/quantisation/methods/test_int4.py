"""4-bit blocks against their definition, and against onnxruntime's reading of the layout."""

import numpy as np
import pytest
from onnx import helper

from engine.compile.quantisation.methods.blocks import pack_nibbles, unpack_nibbles
from engine.compile.quantisation.methods.integer_blocks import int4_blocks
from tests.engine.compile.quantisation.methods.operators import run_node, weights


def dequantized(matrix: np.ndarray, block: int, asymmetric: bool) -> np.ndarray:
    """What the stored int4 form stands for, by its definition."""
    blocks = int4_blocks(matrix, block, asymmetric)
    codes = unpack_nibbles(blocks.stored()).astype(np.float32)
    zeros = np.full(blocks.scales.shape, 8.0)
    if (points := blocks.stored_points()) is not None:
        zeros = unpack_nibbles(points)[:, : zeros.shape[1]]
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
    tensors = {"w": blocks.stored(), "s": blocks.scales}
    if (points := blocks.stored_points()) is not None:
        tensors["z"] = points
    node = helper.make_node(
        "MatMulNBits", ["x", *tensors], ["y"], domain="com.microsoft", K=inputs, N=24, bits=4, block_size=32
    )
    x = np.random.default_rng(2).standard_normal((5, inputs)).astype(np.float32)
    result = run_node(node, tensors, x, 24)
    assert np.allclose(result, x @ dequantized(matrix, 32, asymmetric)[:, :inputs].T, atol=1e-4)
