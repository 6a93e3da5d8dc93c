"""4-bit weights of integer graphs against their definition, and their bytes against onnx's own reader."""

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from engine.compile.quantisation.methods.integer_graphs import int4_columns, pack_int4
from engine.errors import CompileError

MATRICES = hnp.arrays(np.float32, (5, 64), elements=st.floats(-4, 4, width=32))


@given(MATRICES)
def test_four_bit_scales_are_small_multiples_of_the_outputs_own(weight: np.ndarray) -> None:
    columns = int4_columns(weight, 32)
    assert columns.grid.scales.shape == (5, 2)
    units = columns.grid.scales.max(axis=1, keepdims=True) / 16
    multiples = columns.grid.scales / units
    np.testing.assert_allclose(multiples, np.rint(multiples), rtol=1e-5)
    assert multiples.min() >= 0.999
    assert columns.integers().min() >= -8 and columns.integers().max() <= 7


def test_four_bits_lose_less_with_blocks_than_with_one_scale_for_each_output() -> None:
    weight = np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32)
    weight[:, 7] *= 8
    lost = []
    for block in (32, 256):
        columns = int4_columns(weight, block)
        real = columns.integers() * np.repeat(columns.grid.scales, block, axis=1)
        lost.append(np.square(real - weight).mean())
    assert lost[0] < 0.6 * lost[1]


def test_a_block_of_zeros_leaves_its_row_alone() -> None:
    weight = np.full((1, 64), 0.01, np.float32)
    weight[:, :32] = 0
    columns = int4_columns(weight, 32)
    real = columns.integers() * np.repeat(columns.grid.scales, 32, axis=1)
    np.testing.assert_allclose(real, weight, atol=1e-3)
    assert not int4_columns(np.zeros((1, 64), np.float32), 32).integers().any()


def test_blocks_must_come_out_even() -> None:
    with pytest.raises(CompileError, match="48 inputs"):
        int4_columns(np.ones((2, 48), np.float32), 32)


@pytest.mark.parametrize("shape", [(4, 6), (3, 5)])
def test_four_bit_bytes_read_back(shape: tuple[int, int]) -> None:
    integers = np.random.default_rng(1).integers(-8, 8, shape).astype(np.int8)
    packed = pack_int4(integers).tobytes()
    tensor = onnx.helper.make_tensor("w", onnx.TensorProto.INT4, shape, packed, raw=True)
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor).astype(np.int8), integers)
