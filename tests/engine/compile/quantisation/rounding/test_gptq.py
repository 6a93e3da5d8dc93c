"""GPTQ against its definition: after each column the rest is set to its optimum by the inverse of its Hessian."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compile.quantisation.rounding.codes import (
    BlockCodes,
    BlockScales,
    Coding,
    InputStatistics,
    damped,
    extreme_scales,
    levels,
    output_errors,
    rounded,
    rounded_rows,
)
from engine.compile.quantisation.rounding.gptq import (
    ChooseScales,
    Factor,
    compensated_rows,
    compensated_searching,
    factorised,
    picked_rows,
    search_block,
)
from engine.errors import CompileError

EIGHT = np.float32(8)


def random_case(outputs: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix and the Hessian of inputs that are correlated and of very different sizes."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((4 * inputs, inputs)) + random.standard_normal((4 * inputs, 4)) @ random.standard_normal(
        (4, inputs)
    )
    statistics = InputStatistics(inputs)
    statistics.add((x * random.gamma(1.0, size=inputs)).astype(np.float32))
    return random.standard_normal((outputs, inputs)), statistics.hessian


def by_blocks(hessian: np.ndarray, block: int) -> np.ndarray:
    """The order of rounding: whole blocks by the sum of their diagonals, and columns of each by theirs."""
    diagonal = np.diagonal(hessian).reshape(-1, block)
    blocks = sorted(range(len(diagonal)), key=lambda index: -diagonal[index].sum())
    return np.concatenate([np.argsort(-diagonal[index], kind="stable") + index * block for index in blocks])


def searching(coding: Coding) -> ChooseScales:
    return lambda values, importance, _: search_block(values, importance, coding)


def of_grid(grid: BlockScales) -> ChooseScales:
    """Scales that are known before."""
    zeros = np.full_like(grid.scales, EIGHT) if grid.zeros is None else grid.zeros.astype(np.float32)
    return lambda values, importance, block: (grid.scales[:, block], zeros[:, block])


def fixed(weight: np.ndarray, factor: Factor, grid: BlockScales) -> BlockCodes:
    coding = Coding.SYMMETRIC if grid.zeros is None else Coding.ASYMMETRIC
    if grid.zeros is not None and grid.zeros.dtype == np.float32:
        coding = Coding.OFFSET
    return compensated_searching(weight, factor, of_grid(grid), coding)


def textbook(
    weight: np.ndarray, hessian: np.ndarray, order: np.ndarray, block: int, grid: BlockScales | None, coding: Coding
) -> np.ndarray:
    """Codes [outputs, inputs]; grid None: the scales of a block are searched when its first column is reached."""
    weight, codes = weight.copy(), np.zeros(weight.shape, np.uint8)
    hessian = damped(hessian, 0.01)
    found: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    for step, column in enumerate(order):
        index = int(column) // block
        if index not in found and grid is None:
            part = order[step : step + block]
            found[index] = search_block(weight[:, part].T, np.diagonal(hessian)[part], coding)
        elif index not in found and grid is not None:
            zeros = np.full(len(weight), EIGHT) if grid.zeros is None else grid.zeros[:, index].astype(np.float32)
            found[index] = grid.scales[:, index], zeros
        scales, zeros = found[index]
        code = levels(weight[:, column], scales, zeros)
        codes[:, column] = code
        error = weight[:, column] - (code - zeros) * scales
        rest = order[step:]
        inverse = np.linalg.inv(hessian[np.ix_(rest, rest)])
        weight[:, rest] -= np.outer(error / inverse[0, 0], inverse[0])
    return codes


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize(("inputs", "block"), [(96, 32), (128, 64), (128, 128)])
def test_fixed_scales_give_the_codes_of_the_definition(coding: Coding, inputs: int, block: int) -> None:
    weight, hessian = random_case(9, inputs, inputs + block)
    grid = extreme_scales(weight, block, coding)
    codes = fixed(weight, factorised(hessian, block, dtype=np.float64), grid)
    columns = by_blocks(hessian, block)
    assert np.array_equal(codes.codes.reshape(9, -1), textbook(weight, hessian, columns, block, grid, coding))


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize(("inputs", "block"), [(96, 32), (128, 64), (128, 128)])
def test_scales_searched_when_a_block_is_reached_give_the_codes_of_the_definition(
    coding: Coding, inputs: int, block: int
) -> None:
    weight, hessian = random_case(9, inputs, inputs + block)
    factor = factorised(hessian, block, dtype=np.float64)
    codes = compensated_searching(weight, factor, searching(coding), coding)
    columns = by_blocks(hessian, block)
    assert np.array_equal(codes.codes.reshape(9, -1), textbook(weight, hessian, columns, block, None, coding))
    assert (codes.grid.zeros is None) == (coding in (Coding.SYMMETRIC, Coding.POSITIVE))
    assert np.array_equal(rounded(codes.floats(), codes.grid).codes, codes.codes)


def test_blocks_and_their_columns_are_ordered_by_their_diagonals_and_padding_is_last() -> None:
    hessian = np.diag([0.1, 0.3, 0.6, 0.2, 0.2])
    assert list(factorised(hessian, 2).order) == [2, 3, 1, 0, 4, 5]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(Coding), st.sampled_from([64, 90, 128]), st.integers(0, 2**32 - 1))
def test_the_output_error_is_below_that_of_rounding_to_nearest(coding: Coding, inputs: int, seed: int) -> None:
    weight, hessian = random_case(24, inputs, seed)
    weight = weight.astype(np.float32)
    factor = factorised(hessian, 32)
    grid = extreme_scales(weight, 32, coding)
    nearest = output_errors(weight, rounded(weight, grid).floats(), hessian)
    searched = compensated_searching(weight, factor, searching(coding), coding)
    for codes in (fixed(weight, factor, grid), searched):
        assert output_errors(weight, codes.floats(), hessian).sum() <= nearest.sum()


def test_rows_of_different_layouts_are_not_mixed() -> None:
    weight, _ = random_case(2, 64, 0)
    one, other = (rounded(weight, extreme_scales(weight, 32, c)) for c in (Coding.SYMMETRIC, Coding.ASYMMETRIC))
    with pytest.raises(ValueError, match="one layout"):
        picked_rows(np.array([True, False]), one, other)


def test_slices_of_rows_give_the_codes_of_the_whole() -> None:
    weight, hessian = random_case(10, 64, 1)
    factor = factorised(hessian, 32, dtype=np.float64)
    whole = compensated_searching(weight, factor, searching(Coding.SYMMETRIC), Coding.SYMMETRIC)
    part = compensated_searching(weight[6:], factor, searching(Coding.SYMMETRIC), Coding.SYMMETRIC)
    assert np.array_equal(whole.codes[6:], part.codes)


def test_an_input_that_was_always_zero_is_rounded_to_nearest_and_moves_nothing() -> None:
    weight, hessian = random_case(6, 64, 2)
    hessian[[5, 40]] = 0
    hessian[:, [5, 40]] = 0
    factor = factorised(hessian, 32, dtype=np.float64)
    grid = extreme_scales(weight, 32, Coding.SYMMETRIC)
    codes = fixed(weight, factor, grid).codes.reshape(6, -1)
    assert np.array_equal(codes[:, [5, 40]], rounded(weight, grid).codes.reshape(6, -1)[:, [5, 40]])
    moved = weight.copy()
    moved[:, [5, 40]] *= 0.5
    others = np.delete(np.arange(64), [5, 40])
    assert np.array_equal(fixed(moved, factor, grid).codes.reshape(6, -1)[:, others], codes[:, others])


def test_padding_holds_zeros_and_moves_nothing() -> None:
    weight, hessian = random_case(6, 80, 3)
    grid = extreme_scales(weight, 32, Coding.SYMMETRIC)
    codes = fixed(weight, factorised(hessian, 32, dtype=np.float64), grid)
    columns = by_blocks(np.pad(hessian, (0, 16)), 32)
    expected = textbook(weight, hessian, columns[columns < 80], 32, grid, Coding.SYMMETRIC)
    assert np.array_equal(codes.codes.reshape(6, -1)[:, :80], expected)
    assert (codes.codes.reshape(6, -1)[:, 80:] == 8).all()
    assert codes.floats().shape == (6, 80)


def test_without_calibration_everything_is_rounded_to_nearest() -> None:
    weight, _ = random_case(4, 64, 4)
    grid = extreme_scales(weight, 32, Coding.ASYMMETRIC)
    codes = fixed(weight, factorised(np.zeros((64, 64)), 32), grid)
    assert np.array_equal(codes.codes, rounded(weight, grid).codes)


def test_a_matrix_without_a_factor_is_refused() -> None:
    with pytest.raises(CompileError, match="raise the damping above"):
        factorised(np.array([[1.0, 5.0], [5.0, 1.0]]), 2)


def test_the_factor_of_divided_inputs() -> None:
    """R Rᵀ is the damped Hessian, rows and columns divided, in the order of rounding; padding stays as it is."""
    _, hessian = random_case(1, 28, 9)
    scales = np.random.default_rng(2).gamma(2.0, size=28)
    factor = factorised(hessian, 8, dtype=np.float64)
    found = factor.divided(scales)
    wanted = np.eye(32)
    wanted[:28, :28] = damped(hessian, 0.01) / np.outer(scales, scales)
    np.testing.assert_allclose(
        found.upper @ found.upper.T, wanted[np.ix_(found.order, found.order)], rtol=1e-9, atol=1e-9
    )
    np.testing.assert_allclose(found.importance, np.diagonal(wanted)[found.order])
    assert np.array_equal(found.order, factor.order)


@pytest.mark.parametrize("inputs", [64, 72])
def test_rows_of_8_bits_lose_less_than_nearest(inputs: int) -> None:
    weight, hessian = random_case(20, inputs, inputs)
    weight = weight.astype(np.float32)
    plain, found = rounded_rows(weight), compensated_rows(weight, factorised(hessian, 32))
    assert (found.bits, found.codes.shape) == (8, (20, 1, inputs))
    assert found.codes.min() >= 1
    assert np.array_equal(found.grid.scales, plain.grid.scales)
    before, after = (output_errors(weight, codes.floats(), hessian).sum() for codes in (plain, found))
    assert after < 0.5 * before
