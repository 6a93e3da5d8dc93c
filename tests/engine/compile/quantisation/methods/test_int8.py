"""int8: blocks of 8 bits, to which floats are rounded and into which 4-bit blocks of a file move."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.compile.quantisation.methods.blocks import Blocks
from engine.compile.quantisation.methods.integer_blocks import int4_blocks, int8_blocks


def weights(outputs: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal((outputs, inputs)).astype(np.float32)


def test_floats_lose_half_a_step_of_their_block() -> None:
    """Also of blocks of zeros and of a width that no block divides."""
    weight = weights(3, 70)
    weight[1, :32] = 0
    blocks = int8_blocks(weight, weight.shape[1])
    assert blocks.codes.shape == (3, 3, 32)
    assert blocks.codes.min() >= 1
    steps = np.repeat(blocks.scales, 32, axis=1)[:, :70]
    assert np.all(np.abs(blocks.floats()[:, :70] - weight) <= steps * 0.501)
    assert np.all(blocks.floats()[1, :32] == 0)
    assert np.all(blocks.floats()[:, 70:] == 0)


def test_codes_of_four_bits_are_moved_not_rounded() -> None:
    """A stack of both becomes 8 bits, and loses nothing by it."""
    narrow = int4_blocks(weights(4, 96), 32, False)
    assert np.array_equal(int8_blocks(narrow, 96).floats(), narrow.floats()[:, :96])


@pytest.mark.parametrize("has_points", [False, True])
def test_small_blocks_and_zero_points_stay_where_there_is_room(has_points: bool) -> None:
    random = np.random.default_rng(5)
    points = random.integers(0, 256, (4, 6)).astype(np.uint8) if has_points else None
    codes, scales = random.integers(0, 256, (4, 6, 16)).astype(np.uint8), np.float32(random.random((4, 6)) + 0.1)
    given = Blocks(8, codes, scales, points)
    assert np.array_equal(int8_blocks(given, 96, 16, has_points).floats(), given.floats())
    assert not np.array_equal(int8_blocks(given, 96).floats(), given.floats())
    narrow = int4_blocks(weights(4, 96), 32, True)
    assert np.array_equal(int8_blocks(narrow, 96, 16, has_points).floats(), narrow.floats())


@pytest.mark.parametrize("rows", [1, 16])
def test_the_operator_reads_them_so(rows: int) -> None:
    """Inputs that int8 holds exactly: the product is that of the floats but for the order of sums."""
    blocks = int8_blocks(weights(48, 64), 64)
    inputs = np.sign(np.random.default_rng(3).standard_normal((rows, 64))).astype(np.float32)
    assert np.allclose(product(inputs, blocks), inputs @ blocks.floats().T, atol=1e-4)


def product(inputs: np.ndarray, blocks: Blocks) -> np.ndarray:
    outputs, count, block = blocks.codes.shape
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["y"],
        domain="com.microsoft",
        K=count * block,
        N=outputs,
        bits=8,
        block_size=block,
        accuracy_level=4,
    )
    stored = [numpy_helper.from_array(blocks.codes, "w"), numpy_helper.from_array(blocks.scales, "s")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(inputs.shape))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [len(inputs), outputs])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], stored), opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": inputs})[0])
