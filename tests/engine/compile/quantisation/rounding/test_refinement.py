"""Each turn against its definition: the best of all 16 codes of a weight, the scales of least squares."""

from dataclasses import replace

import numpy as np
import pytest

from engine.compile.quantisation.rounding import refinement as code_state
from engine.compile.quantisation.rounding.codes import (
    DAMPING,
    BlockCodes,
    Coding,
    damped,
    extreme_scales,
    output_errors,
    rounded,
)
from engine.compile.quantisation.rounding.gptq import has_multiples, reaching_scales
from engine.compile.quantisation.rounding.refinement import Curvature, StoreScales, refined
from tests.engine.compile.quantisation.rounding.multiples import nearest_multiples
from tests.engine.compile.quantisation.rounding.test_gptq import random_case

BLOCK, OUTPUTS, INPUTS = 8, 6, 28  # the last block is not full


def as_they_are(scales: np.ndarray) -> np.ndarray:
    return scales


def nearest(weight: np.ndarray, coding: Coding) -> BlockCodes:
    return rounded(weight, extreme_scales(weight, BLOCK, coding))


def errors(weight: np.ndarray, codes: BlockCodes, hessian: np.ndarray) -> np.ndarray:
    return output_errors(weight.astype(np.float64), codes.floats().astype(np.float64), damped(hessian, DAMPING))


def case(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    weight, hessian = random_case(OUTPUTS, INPUTS, seed)
    return weight.astype(np.float32), hessian


def with_scales(codes: BlockCodes, scales: np.ndarray) -> BlockCodes:
    return replace(codes, grid=replace(codes.grid, scales=scales))


def textbook_descent(weight: np.ndarray, codes: BlockCodes, hessian: np.ndarray) -> np.ndarray:
    """Column after column, all 16 codes are tried in each row and the one of the least error is taken."""
    found = codes.codes.copy()
    for column in range(INPUTS):
        place = (slice(None), column // BLOCK, column % BLOCK)
        tried = []
        for code in range(16):
            found[place] = code
            tried.append(errors(weight, replace(codes, codes=found), hessian))
        found[place] = np.argmin(tried, axis=0)
    return found


@pytest.mark.parametrize("columns", [1, 16, 24, 256])
@pytest.mark.parametrize("coding", Coding)
def test_codes_are_the_best_of_all_when_their_turn_comes(
    coding: Coding, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_state, "DESCENDED", columns)
    weight, hessian = case()
    codes = nearest(weight, coding)
    # Scales that may not change: what is stored is always what was given.
    found = refined(weight, codes, Curvature.of(hessian, BLOCK), False, lambda _: codes.grid.scales)
    inside = (slice(None), np.arange(INPUTS) // BLOCK, np.arange(INPUTS) % BLOCK)
    np.testing.assert_array_equal(found.codes[inside], textbook_descent(weight, codes, hessian)[inside])


@pytest.mark.parametrize("outputs", [4, 128])
@pytest.mark.parametrize("coding", Coding)
def test_scales_are_those_of_least_squares(coding: Coding, outputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_state, "SOLVED", outputs)
    weight, hessian = case(1)
    codes = nearest(weight, coding)
    asked: list[np.ndarray] = []

    def store(scales: np.ndarray) -> np.ndarray:
        asked.append(scales)
        return scales

    refined(weight, codes, Curvature.of(hessian, BLOCK), False, store)
    root = np.linalg.cholesky(damped(hessian, DAMPING)).T
    steps = with_scales(codes, np.ones_like(codes.grid.scales)).floats()
    for row in range(OUTPUTS):
        columns = np.zeros((INPUTS, codes.grid.scales.shape[1]))
        columns[range(INPUTS), np.arange(INPUTS) // BLOCK] = steps[row]
        best = np.linalg.lstsq(root @ columns, root @ weight[row], rcond=None)[0]
        np.testing.assert_allclose(asked[0][row], best, rtol=0.02)


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("seed", range(5))
def test_no_round_makes_a_row_worse(coding: Coding, seed: int) -> None:
    weight, hessian = case(seed)
    codes, curvature = nearest(weight, coding), Curvature.of(hessian, BLOCK)
    before = errors(weight, codes, hessian)
    for _ in range(3):
        codes = refined(weight, codes, curvature, False, as_they_are)
        found = errors(weight, codes, hessian)
        assert (found <= before * (1 + 1e-5)).all()
        before = found
    assert before.sum() < 0.8 * errors(weight, nearest(weight, coding), hessian).sum()


@pytest.mark.parametrize("store", [lambda scales: scales * 3, lambda scales: scales * np.nan])
def test_scales_that_are_worse_once_they_are_stored_are_not_taken(store: StoreScales) -> None:
    weight, hessian = case(2)
    codes = nearest(weight, Coding.SYMMETRIC)
    found = refined(weight, codes, Curvature.of(hessian, BLOCK), False, store)
    np.testing.assert_array_equal(found.grid.scales, codes.grid.scales)


def test_multiples_of_a_unit_stay_multiples() -> None:
    weight, hessian = case(3)
    codes = rounded(weight, nearest_multiples(reaching_scales(weight, BLOCK), BLOCK))
    found = refined(weight, codes, Curvature.of(hessian, BLOCK), True, as_they_are)
    assert has_multiples(found.grid.scales)
    ratios = found.grid.scales / codes.grid.scales
    np.testing.assert_allclose(ratios, np.broadcast_to(ratios[:, :1], ratios.shape), rtol=1e-5)
    assert (errors(weight, found, hessian) < errors(weight, codes, hessian)).all()


@pytest.mark.parametrize("one_unit", [False, True])
def test_blocks_of_zeros_keep_their_scales(one_unit: bool) -> None:
    weight, hessian = case(4)
    codes = nearest(weight, Coding.SYMMETRIC)
    empty = replace(codes, codes=np.full_like(codes.codes, 8))
    found = refined(np.zeros_like(weight), empty, Curvature.of(hessian, BLOCK), one_unit, as_they_are)
    np.testing.assert_array_equal(found.floats(), 0)
    np.testing.assert_array_equal(found.grid.scales, codes.grid.scales)
