"""Codes and scales as numbers: nothing moves before a step, gradients of scales are exact, forms stay."""

import numpy as np
import pytest
import torch

from engine.compile.quantisation.learn.descent import LearnedBlocks
from engine.compile.quantisation.rounding.codes import BlockCodes, BlockScales, Coding, extreme_scales, rounded
from engine.compile.quantisation.rounding.lpbq import has_multiples, reaching_scales
from tests.engine.compile.quantisation.rounding.multiples import nearest_multiples

WEIGHT = np.random.default_rng(4).standard_normal((6, 40)).astype(np.float32)
BLOCK = 16  # the last block of an output is half padding


def given(coding: Coding) -> BlockCodes:
    return rounded(WEIGHT, extreme_scales(WEIGHT, BLOCK, coding))


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["scales", "scales-and-codes"])
def test_before_a_step_nothing_has_moved(coding: Coding, weight: np.ndarray | None) -> None:
    codes = given(coding)
    blocks = LearnedBlocks(codes, weight)
    learned = blocks.learned()
    assert np.array_equal(blocks.floats().detach().numpy(), codes.floats())
    assert np.array_equal(learned.codes, codes.codes)
    assert np.array_equal(learned.grid.scales, codes.grid.scales)
    assert (learned.grid.zeros is None) == (coding in (Coding.SYMMETRIC, Coding.POSITIVE))


def test_codes_far_from_the_weights_stay_as_given() -> None:
    """Error compensation puts codes where rounding would not."""
    codes = given(Coding.SYMMETRIC)
    far = BlockCodes((codes.codes + 3) % 16, codes.grid, codes.inputs)
    assert np.array_equal(LearnedBlocks(far, WEIGHT).learned().codes, far.codes)


@pytest.mark.parametrize("one_gain", [False, True])
def test_the_gradient_of_a_gain_is_the_difference_that_it_makes(one_gain: bool) -> None:
    codes = given(Coding.ASYMMETRIC)
    blocks = LearnedBlocks(codes, one_gain=one_gain)
    towards = torch.from_numpy(np.random.default_rng(5).standard_normal(WEIGHT.shape).astype(np.float32))
    (blocks.floats() * towards).sum().backward()
    assert blocks.gains.grad is not None
    assert blocks.gains.shape == ((6, 1) if one_gain else (6, 3))
    step = 1e-2
    for index in np.ndindex(*blocks.gains.shape):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                blocks.gains[index] = sign * step
                ends.append((blocks.floats() * towards).double().sum())
                blocks.gains[index] = 0
        assert float(ends[0] - ends[1]) / (2 * step) == pytest.approx(
            float(blocks.gains.grad[index]), rel=1e-3, abs=1e-3
        )


def test_multiples_of_a_unit_stay_multiples() -> None:
    codes = rounded(WEIGHT, nearest_multiples(reaching_scales(WEIGHT, BLOCK), BLOCK))
    blocks = LearnedBlocks(codes, one_gain=True)
    with torch.no_grad():
        blocks.gains += torch.linspace(-1, 1, 6)[:, None]
    scales = blocks.learned().grid.scales
    assert has_multiples(scales)
    factors = scales / codes.grid.scales
    assert factors == pytest.approx(np.exp(np.linspace(-1, 1, 6))[:, None].repeat(3, axis=1))


def test_scales_keep_their_sign() -> None:
    codes = given(Coding.SYMMETRIC)
    blocks = LearnedBlocks(codes)
    with torch.no_grad():
        blocks.gains -= 20
    assert np.array_equal(np.sign(blocks.learned().grid.scales), np.sign(codes.grid.scales))


def test_a_place_that_crosses_a_border_turns_its_code_and_codes_stay_codes() -> None:
    codes = BlockCodes(np.array([[[0, 7, 15, 8]]], np.uint8), BlockScales(np.ones((1, 1), np.float32), None, 4), 4)
    blocks = LearnedBlocks(codes, codes.floats())
    assert blocks.places is not None
    with torch.no_grad():
        blocks.places += torch.tensor([-0.9, 0.6, 0.9, 0.4])
    assert blocks.learned().codes.tolist() == [[[0, 8, 15, 8]]]
    blocks.floats().sum().backward()
    assert blocks.places.grad is not None
    assert blocks.places.grad.tolist() == [[[1.0, 1.0, 1.0, 1.0]]]
