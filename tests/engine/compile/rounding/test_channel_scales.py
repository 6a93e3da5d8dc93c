"""AWQ's scales against their definition, and folds that leave the float result as it was."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.compile.rounding.channel_scales import (
    ALPHAS,
    channel_scales,
    folded_into_columns,
    folded_into_norm,
    folded_into_rows,
    searched_channel_scales,
)
from engine.compile.rounding.codes import Coding, extreme_scales, rounded


def random_case(seed: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Two matrices and inputs of which a few channels are fifty times as large."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((100, 64)).astype(np.float32)
    x[:, random.choice(64, 3, replace=False)] *= 50
    return [random.standard_normal((outputs, 64)).astype(np.float32) for outputs in (5, 9)], x


def error(weights: list[np.ndarray], x: np.ndarray, scales: np.ndarray) -> float:
    total = 0.0
    for weight in weights:
        scaled = weight * scales
        back = rounded(scaled, extreme_scales(scaled, 32, Coding.SYMMETRIC)).floats() / scales
        total += float(((x @ (back - weight).T) ** 2).sum())
    return total


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_the_alpha_with_the_least_output_error_is_taken(seed: int) -> None:
    weights, x = random_case(seed)
    magnitudes = np.abs(x).mean(axis=0)
    found = error(weights, x, searched_channel_scales(weights, x, magnitudes, 32, Coding.SYMMETRIC))
    powers = [magnitudes**alpha for alpha in np.arange(20) / 20]
    expected = min(error(weights, x, power / np.sqrt(power.max() * power.min())) for power in powers)
    assert found == pytest.approx(expected, rel=1e-3)
    assert found <= error(weights, x, np.ones(64, np.float32)) * (1 + 1e-5)


def test_outlier_channels_gain() -> None:
    weights, x = random_case(0)
    scales = searched_channel_scales(weights, x, np.abs(x).mean(axis=0), 32, Coding.SYMMETRIC)
    assert error(weights, x, scales) < 0.5 * error(weights, x, np.ones(64, np.float32))


def test_large_alphas_are_tried_too() -> None:
    weight = np.linspace(-1, 1, 32, dtype=np.float32)[None]
    magnitudes = np.full(32, 0.1, np.float32)
    magnitudes[18] = 1  # a small weight, which only a large scale puts on the last step
    x = np.diag(magnitudes)
    scales = searched_channel_scales([weight], x, magnitudes, 32, Coding.POSITIVE)
    errors = []
    for alpha in ALPHAS:
        scaled = weight * channel_scales(magnitudes, alpha)
        back = rounded(scaled, extreme_scales(scaled, 32, Coding.POSITIVE)).floats() / channel_scales(magnitudes, alpha)
        errors.append(np.square((back - weight) * magnitudes).sum())
    assert np.array_equal(scales, channel_scales(magnitudes, ALPHAS[int(np.argmin(errors))]))
    assert np.argmin(errors) >= 10
    assert ALPHAS[-1] == 0.95


def test_a_factor_of_the_products_serves_in_place_of_the_inputs() -> None:
    weights, x = random_case(1)
    magnitudes = np.abs(x).mean(axis=0)
    lower = np.linalg.cholesky((x.T @ x).astype(np.float64) + 1e-6 * np.eye(64)).astype(np.float32)
    by_inputs, by_factor = (
        searched_channel_scales(weights, matrix, magnitudes, 32, Coding.SYMMETRIC) for matrix in (x, lower.T)
    )
    assert np.array_equal(by_inputs, by_factor)


def test_scales_are_centred_and_silent_channels_keep_one() -> None:
    scales = channel_scales(np.array([4.0, 0.0, 16.0, 64.0]), 0.5)
    np.testing.assert_allclose(scales, [0.5, 1.0, 1.0, 2.0], rtol=1e-6)
    assert (channel_scales(np.zeros(3), 0.5) == 1).all()
    assert (channel_scales(np.array([1e-30, 1e30]), ALPHAS[-1]) == np.array([1e-4, 1e4], np.float32)).all()


def rms_norm(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + 1e-6) * gain


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_folding_into_the_norm_leaves_the_result(offset: float) -> None:
    random = np.random.default_rng(0)
    x, weight, gain = random.standard_normal((6, 64)), random.standard_normal((5, 64)), random.standard_normal(64)
    scales = channel_scales(np.abs(x).mean(axis=0) ** 3, 0.5)
    before = rms_norm(x, gain + offset) @ weight.T
    after = rms_norm(x, folded_into_norm(gain, scales, offset) + offset) @ folded_into_columns(weight, scales).T
    np.testing.assert_allclose(after, before, rtol=1e-12, atol=1e-12)


def test_folding_into_the_layer_before_leaves_the_result() -> None:
    random = np.random.default_rng(1)
    x, first, bias = random.standard_normal((6, 32)), random.standard_normal((64, 32)), random.standard_normal(64)
    second, scales = random.standard_normal((5, 64)), channel_scales(random.gamma(1.0, size=64), 0.5)
    before = (x @ first.T + bias) @ second.T
    folded = x @ folded_into_rows(first, scales).T + folded_into_rows(bias, scales)
    np.testing.assert_allclose(folded @ folded_into_columns(second, scales).T, before, rtol=1e-12, atol=1e-12)


def test_powers_of_two_fold_bit_for_bit() -> None:
    random = np.random.default_rng(2)
    x, gain, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((6, 64), (64,), (5, 64)))
    scales = np.exp2(random.integers(-3, 4, 64)).astype(np.float32)
    folded = rms_norm(x, folded_into_norm(gain, scales)) @ folded_into_columns(weight, scales).T
    assert np.array_equal(folded, rms_norm(x, gain) @ weight.T)
