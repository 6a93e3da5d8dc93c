"""Rounding to nearest in blocks: the same codes, scales and zero points as the methods store today."""

import numpy as np
import pytest

from engine.compile.quantisation.methods.integer_blocks import int4_blocks
from engine.compile.quantisation.methods.integer_graphs import pack_int4
from engine.compile.quantisation.rounding.codes import Coding, extreme_scales, rounded


def matrix(outputs: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(inputs).standard_normal((outputs, inputs)).astype(np.float32)


@pytest.mark.parametrize("coding", [Coding.SYMMETRIC, Coding.ASYMMETRIC])
@pytest.mark.parametrize(("inputs", "block"), [(128, 32), (192, 64), (128, 128), (80, 32)])
def test_nearest_is_what_int4_stores(coding: Coding, inputs: int, block: int) -> None:
    weight = matrix(7, inputs)
    weight[2, :block] = 0
    today = int4_blocks(weight, block, coding is Coding.ASYMMETRIC)
    codes = rounded(weight, extreme_scales(weight, block, coding))
    blocks = codes.blocks()
    assert np.array_equal(blocks.codes, today.codes)
    assert np.array_equal(blocks.scales, today.scales)
    assert (blocks.zero_points is None) == (today.zero_points is None)
    assert np.array_equal(blocks.points(), today.points())
    assert np.array_equal(codes.floats(), today.floats()[:, :inputs])


def test_positive_scales_put_the_largest_magnitude_on_seven() -> None:
    weight = matrix(5, 64)
    codes = rounded(weight, extreme_scales(weight, 32, Coding.POSITIVE))
    assert (codes.grid.scales > 0).all()
    integers = codes.integers()
    assert (np.abs(integers.reshape(5, 2, 32)).max(axis=2) == 7).all()
    assert np.array_equal(integers.astype(np.float32) * codes.grid.scales.repeat(32, axis=1), codes.floats())
    assert pack_int4(integers).shape == (5 * 64 // 2,)


def test_padding_is_not_among_the_integers() -> None:
    weight = matrix(3, 80)
    codes = rounded(weight, extreme_scales(weight, 32, Coding.POSITIVE))
    assert codes.codes.shape == (3, 3, 32)
    assert codes.integers().shape == codes.floats().shape == (3, 80)


def test_codes_with_zero_points_are_no_signed_integers() -> None:
    codes = rounded(matrix(2, 32), extreme_scales(matrix(2, 32), 32, Coding.ASYMMETRIC))
    with pytest.raises(ValueError, match="zero points"):
        codes.integers()


@pytest.mark.parametrize("coding", Coding)
def test_blocks_of_nothing_stay_nothing(coding: Coding) -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[0, 0] = 1e-40  # its scale has no finite reciprocal
    assert (rounded(weight, extreme_scales(weight, 32, coding)).floats() == 0).all()
