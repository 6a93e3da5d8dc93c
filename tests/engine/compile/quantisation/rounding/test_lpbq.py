"""LPBQ scales against their definition: integer multiples, 1 to 16, of one unit of each output."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compile.quantisation.methods.integer_graphs import int4_columns
from engine.compile.quantisation.rounding.codes import Coding, InputStatistics, output_errors, rounded
from engine.compile.quantisation.rounding.gptq import (
    choosing_multiples,
    compensated_searching,
    factorised,
    has_multiples,
    reaching_scales,
    searched_multiples,
    units_of,
)
from tests.engine.compile.quantisation.rounding.multiples import nearest_multiples


def random_case(outputs: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix whose blocks differ widely in size, and importances."""
    random = np.random.default_rng(seed)
    sizes = random.gamma(1.0, size=(outputs, inputs // 32)).repeat(32, axis=1)
    weight = (random.standard_normal((outputs, inputs)) * sizes).astype(np.float32)
    return weight, random.gamma(0.5, size=inputs).astype(np.float32) + np.float32(1e-3)


def error(weight: np.ndarray, importance: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[outputs] of scales [outputs, blocks]."""
    wide = scales.repeat(weight.shape[1] // scales.shape[1], axis=1)
    codes = np.clip(np.floor(weight / wide + 0.5), -8, 7)
    return (importance * (codes * wide - weight) ** 2).sum(axis=1)


def test_nearest_multiples_are_the_nearest() -> None:
    wanted = np.random.default_rng(0).gamma(1.0, size=(6, 9)).astype(np.float32)
    grid = nearest_multiples(wanted, 32)
    units = wanted.max(axis=1, keepdims=True) / 16
    every = units[:, :, None] * np.arange(1, 17)
    expected = np.abs(every - wanted[:, :, None]).min(axis=2)
    np.testing.assert_allclose(np.abs(grid.scales - wanted), expected, rtol=1e-4, atol=1e-6)


def test_scales_that_w4a16_stores_today_are_multiples_already() -> None:
    weight, _ = random_case(6, 128, 1)
    today = int4_columns(weight, 32)
    grid = nearest_multiples(today.grid.scales, 32)
    np.testing.assert_allclose(grid.scales, today.grid.scales, rtol=1e-6)
    assert (rounded(weight, grid).integers() == today.integers()).mean() > 0.999


@pytest.mark.parametrize("block", [32, 64, 128])
def test_searched_multiples_have_the_least_error_of_the_grid(block: int) -> None:
    weight, importance = random_case(4, 256, block)
    grid = searched_multiples(weight, block, importance)
    exact, weights = weight.astype(np.float64), importance.astype(np.float64)
    best = np.full(4, np.inf)
    for share in np.linspace(0.7, 1.1, 9):
        units = np.abs(exact).max(axis=1) / 7 / 16 * share
        total = np.zeros(4)
        tops = np.abs(exact).argmax(axis=1) // block
        for start in range(0, 256, block):
            part = slice(start, start + block)
            errors = [error(exact[:, part], weights[part], units[:, None] * k) for k in range(1, 17)]
            total += np.where(tops == start // block, errors[-1], np.min(errors, axis=0))
        best = np.minimum(best, total)
    np.testing.assert_allclose(error(exact, weights, grid.scales.astype(np.float64)), best, rtol=1e-4)


@pytest.mark.parametrize(("outlier", "share"), [(7.0, 0.7), (7.4, 1.1)])
def test_the_unit_moves_away_from_what_reaches_the_largest_weight(outlier: float, share: float) -> None:
    """Two blocks of steps of 16 and 15 units, of another unit than their largest weight asks for."""
    unit = outlier / 7 / 16 * share
    steps = np.array([16, 15]) * unit
    weight = (np.arange(64) % 7 * steps.repeat(32)).astype(np.float32)[None]
    weight[0, 0] = outlier
    importance = np.ones(64, np.float32)
    importance[0] = 1e-6
    np.testing.assert_allclose(searched_multiples(weight, 32, importance).scales[0], steps, rtol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_searched_multiples_are_multiples_and_lose_no_more_than_the_nearest(seed: int) -> None:
    weight, importance = random_case(5, 128, seed)
    weight[0, :32] = 0
    weight[1] = 0
    nearest = nearest_multiples(reaching_scales(weight, 32), 32)
    searched = searched_multiples(weight, 32, importance)
    after, before = (error(weight, importance, grid.scales) for grid in (searched, nearest))
    assert (after <= before * (1 + 1e-5)).all()
    assert all(is_low_power(row) for row in searched.scales)
    assert (rounded(weight, searched).floats()[1] == 0).all()


def is_low_power(scales: np.ndarray) -> bool:
    """Whether all of an output's scales are integer multiples, from 1 on, of the 16th part of its largest."""
    ratios = scales / (scales.max() / 16)
    return bool(np.allclose(ratios, np.rint(ratios), atol=1e-4) and ratios.min() > 0.5)


def test_gptq_with_multiples_gives_codes_that_w4a16_can_store() -> None:
    random = np.random.default_rng(7)
    weight, _ = random_case(12, 128, 7)
    statistics = InputStatistics(128)
    statistics.add(
        random.standard_normal((400, 6)) @ random.standard_normal((6, 128)) + random.standard_normal((400, 128))
    )
    hessian = statistics.hessian
    fixed = searched_multiples(weight, 32, np.diagonal(hessian))
    nearest = output_errors(weight, rounded(weight, fixed).floats(), hessian).sum()
    units = units_of(fixed.scales)
    reached = compensated_searching(weight, factorised(hessian, 32), choosing_multiples(fixed), Coding.POSITIVE)
    assert np.array_equal(reached.grid.scales, np.rint(reached.grid.scales / units[:, None]) * units[:, None])
    assert has_multiples(reached.grid.scales)
    assert not has_multiples(reaching_scales(weight, 32))
    assert output_errors(weight, reached.floats(), hessian).sum() < 0.6 * nearest
    assert reached.integers().min() >= -8 and reached.integers().max() <= 7
