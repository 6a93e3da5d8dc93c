"""Searched scales against a search written as loops over its definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compile.quantisation.rounding.codes import (
    BlockScales,
    Coding,
    Floats,
    block_scales,
    extreme_scales,
    in_blocks,
    rounded,
)
from engine.compile.quantisation.rounding.gptq import search_block


def searched_scales(weight: Floats, block: int, coding: Coding, importance: Floats) -> BlockScales:
    """Scales of [outputs, inputs]; importance [inputs]: the Hessian's diagonal, the weight of squared errors."""
    columns = np.ascontiguousarray(in_blocks(weight, block).transpose(1, 2, 0))
    weights = in_blocks(importance[None].astype(weight.dtype), block)[0]
    found = [search_block(values, weights[index], coding) for index, values in enumerate(columns)]
    scales = np.stack([scales for scales, _ in found], axis=1)
    return block_scales(scales, np.stack([zeros for _, zeros in found], axis=1), block, coding)


def error(values: np.ndarray, importance: np.ndarray, scale: float, zero: float) -> float:
    codes = np.clip(np.floor(values / scale + zero + 0.5), 0, 15)
    return float((importance * ((codes - zero) * scale - values) ** 2).sum())


def least_error(values: np.ndarray, importance: np.ndarray, coding: Coding) -> float:
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    widest, zero, shifts = (max(high, -low) / 7, 8.0, [0])
    if coding is Coding.SYMMETRIC:
        widest = -(high if high > -low else low) / 8
    if coding is Coding.ASYMMETRIC:
        widest = (high - low) / 15
        zero, shifts = np.clip(np.rint(-low / widest), 0, 15), [-1, 0, 1]
    shares = np.linspace(0.7, 1.1, 17)
    if coding is Coding.OFFSET:
        widest, middle = (high - low) / 15, (high + low) / 2
        tries = ((s, 7.5 - middle / (widest * s) + d) for s in shares for d in (-0.25, 0, 0.25))
        return min(error(values, importance, widest * s, zero) for s, zero in tries)
    return min(error(values, importance, widest * s, np.clip(zero + d, 0, 15)) for s in shares for d in shifts)


def random_case(outputs: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    weight = random.standard_t(4, (outputs, inputs)).astype(np.float32)
    return weight, random.gamma(0.5, size=inputs).astype(np.float32) + np.float32(1e-3)


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("block", [32, 64, 128])
def test_every_block_has_the_least_error_of_the_grid(coding: Coding, block: int) -> None:
    weight, importance = random_case(5, 256, block)
    grid = searched_scales(weight, block, coding, importance)
    for output in range(5):
        for index in range(256 // block):
            part = slice(index * block, (index + 1) * block)
            values, weights = weight[output, part].astype(np.float64), importance[part].astype(np.float64)
            zero = 8.0 if grid.zeros is None else float(grid.zeros[output, index])
            found = error(values, weights, float(grid.scales[output, index]), zero)
            assert found == pytest.approx(least_error(values, weights, coding), rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(Coding), st.sampled_from([32, 64, 100, 130]), st.integers(0, 2**32 - 1))
def test_never_worse_than_the_extremes(coding: Coding, inputs: int, seed: int) -> None:
    weight, importance = random_case(6, inputs, seed)
    nearest = rounded(weight, extreme_scales(weight, 32, coding)).floats()
    searched = rounded(weight, searched_scales(weight, 32, coding, importance)).floats()
    before = (importance * (nearest - weight) ** 2).sum(axis=1, dtype=np.float64)
    after = (importance * (searched - weight) ** 2).sum(axis=1, dtype=np.float64)
    assert (after <= before * (1 + 1e-5)).all()


def test_tall_matrices_are_searched_in_runs_with_the_same_result() -> None:
    weight, importance = random_case(2050, 32, 3)
    whole = searched_scales(weight, 32, Coding.SYMMETRIC, importance).scales
    assert np.array_equal(whole[2040:], searched_scales(weight[2040:], 32, Coding.SYMMETRIC, importance).scales)


def test_weights_that_nothing_reads_do_not_widen_the_scale() -> None:
    weight = np.linspace(-1, 1, 32, dtype=np.float32)[None].repeat(2, axis=0)
    weight[:, 0] = -1.3
    importance = np.ones(32, np.float32)
    importance[0] = 0
    wide = searched_scales(weight, 32, Coding.SYMMETRIC, np.ones(32, np.float32)).scales
    assert (searched_scales(weight, 32, Coding.SYMMETRIC, importance).scales < wide).all()
