"""Moves in pairs against their definition: errors of codes that are tried one pair after the other."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from engine.compile.rounding import pair_moves
from engine.compile.rounding.code_state import CodeState, Curvature
from engine.compile.rounding.codes import BlockCodes, Coding, extreme_scales, rounded
from engine.compile.rounding.pair_moves import move_pairs, partners_of
from tests.engine.compile.rounding.test_gptq import random_case

BLOCK, OUTPUTS, INPUTS = 8, 6, 24


def case(seed: int, coding: Coding = Coding.SYMMETRIC) -> tuple[np.ndarray, BlockCodes, Curvature]:
    weight, hessian = random_case(OUTPUTS, INPUTS, seed)
    codes = rounded(weight.astype(np.float32), extreme_scales(weight.astype(np.float32), BLOCK, coding))
    return weight.astype(np.float32), codes, Curvature.of(hessian, BLOCK)


def errors(weight: np.ndarray, codes: BlockCodes, curvature: Curvature) -> np.ndarray:
    """[outputs]"""
    away = weight.astype(np.float64) - codes.floats()
    return np.asarray(np.einsum("oi,ij,oj->o", away, curvature.hessian.astype(np.float64), away))


def row_error(weight: np.ndarray, codes: BlockCodes, curvature: Curvature, row: int, steps: dict[int, int]) -> float:
    """Of one row with some codes moved; infinite where one leaves 0..15."""
    moved = codes.codes.astype(int).copy()
    for column, step in steps.items():
        moved[row, column // BLOCK, column % BLOCK] += step
    if moved.min() < 0 or moved.max() > 15:
        return float("inf")
    return float(errors(weight, replace(codes, codes=moved.astype(np.uint8)), curvature)[row])


def textbook(weight: np.ndarray, codes: BlockCodes, curvature: Curvature, partners: np.ndarray) -> np.ndarray:
    """Codes [outputs, inputs]. For each column: its better step, then that step with each step of each partner."""
    for column, others in enumerate(partners):
        found = codes.codes.astype(int)
        for row in range(OUTPUTS):
            error = partial(row_error, weight, codes, curvature, row)
            own = min((1, -1), key=lambda step, error=error, column=column: error({column: step}))
            pairs = [{column: own, int(other): step} for other in others for step in (1, -1)]
            best = min([{}, {column: own}, *pairs], key=error)
            for place, step in best.items():
                found[row, place // BLOCK, place % BLOCK] += step
        codes = replace(codes, codes=found.astype(np.uint8))
    return codes.codes.reshape(OUTPUTS, -1)


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("seed", range(3))
def test_each_column_moves_as_trying_all_pairs_would_move_it(seed: int, coding: Coding) -> None:
    weight, codes, curvature = case(seed, coding)
    state, partners = CodeState(weight, codes, curvature), partners_of(curvature.hessian, 5)
    move_pairs(state, partners)
    np.testing.assert_array_equal(state.codes.codes.reshape(OUTPUTS, -1), textbook(weight, codes, curvature, partners))


@pytest.mark.parametrize("coding", Coding)
def test_rows_win_where_codes_alone_win_no_more(coding: Coding) -> None:
    weight, codes, curvature = case(7, coding)
    state, partners = CodeState(weight, codes, curvature), partners_of(curvature.hessian, INPUTS)
    for _ in range(20):
        state.descend()
    alone = errors(weight, state.codes, curvature)
    state.descend()
    np.testing.assert_allclose(errors(weight, state.codes, curvature), alone, rtol=1e-6)
    for _ in range(5):
        move_pairs(state, partners)
    found = errors(weight, state.codes, curvature)
    assert (found <= alone * (1 + 1e-5)).all()
    assert found.sum() < 0.99 * alone.sum()


def test_gradients_are_those_of_the_codes_they_stand_beside() -> None:
    weight, codes, curvature = case(2)
    state = CodeState(weight, codes, curvature)
    move_pairs(state, partners_of(curvature.hessian, 4))
    fresh = CodeState(weight, state.codes, curvature).gradients
    np.testing.assert_allclose(state.gradients, fresh, atol=1e-4 * np.abs(fresh).max())


def test_outputs_are_the_same_whatever_is_done_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, codes, curvature = case(4)
    found = []
    for outputs in (1, 4, 512):
        monkeypatch.setattr(pair_moves, "OUTPUTS", outputs)
        state = CodeState(weight, codes, curvature)
        move_pairs(state, partners_of(curvature.hessian, 3))
        found.append(state.codes.codes)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_partners_are_the_columns_that_are_most_alike() -> None:
    hessian = np.array([[4, 1, -3, 0], [1, 1, 0, 0.5], [-3, 0, 9, 2], [0, 0.5, 2, 1]], np.float32)
    assert partners_of(hessian, 2).tolist() == [[1, 2], [0, 3], [3, 0], [2, 1]]
    assert partners_of(hessian, 9).shape == (4, 3)
    assert all(column not in others for column, others in enumerate(partners_of(hessian, 9)))
    assert partners_of(hessian[:1, :1], 2).shape == (1, 0)
