"""Targets against least squares as numpy solves them."""

import numpy as np
import pytest

from engine.compile.quantisation.choose.form import SharedInputs, Streams, ridge_of


def random_streams(width: int, seed: int) -> Streams:
    random = np.random.default_rng(seed)
    floats = [random.standard_normal((rows, width)).astype(np.float32) for rows in (40, 30)]
    return Streams([x + 0.2 * random.standard_normal(x.shape).astype(np.float32) for x in floats], floats)


def least_squares(weight: np.ndarray, inputs: Streams, added: list[np.ndarray]) -> np.ndarray:
    """min over W' of |x W'ᵀ - (y Wᵀ + d)|² + ridge |W' - W|², as one system of rows."""
    x, y = (np.concatenate(states).astype(np.float64) for states in (inputs.chosen, inputs.floats))
    pull = np.sqrt(ridge_of(x.shape[1], len(x)) * np.square(x).sum() / x.shape[1])
    rows = np.concatenate([x, pull * np.eye(x.shape[1])])
    wanted = np.concatenate([y @ weight.T + np.concatenate(added), pull * weight.T])
    return np.linalg.lstsq(rows, wanted, rcond=None)[0].T


def test_targets_are_the_least_squares_of_the_float_outputs() -> None:
    inputs, weight = random_streams(16, 1), np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    none = [np.zeros((len(x), 5)) for x in inputs.chosen]
    found = SharedInputs.measured(inputs, 16).target(weight)
    np.testing.assert_allclose(found, least_squares(weight, inputs, none), atol=2e-5)


def test_targets_make_up_for_what_the_stream_is_behind() -> None:
    inputs, ahead = random_streams(16, 1), random_streams(5, 2)
    weight = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    added = [y - x for x, y in zip(ahead.chosen, ahead.floats, strict=True)]
    found = SharedInputs.measured(inputs, 16, (weight, ahead)).target(weight)
    np.testing.assert_allclose(found, least_squares(weight, inputs, added), atol=2e-5)


def test_equal_streams_leave_the_weights_as_they_are() -> None:
    floats = random_streams(16, 1).floats
    weight = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    assert np.array_equal(SharedInputs.measured(Streams(floats, floats), 16).target(weight), weight)


def test_inputs_that_are_all_zero_leave_the_weights_as_they_are() -> None:
    zeros, ahead = [np.zeros((4, 16), np.float32)], random_streams(5, 2)
    weight = np.ones((5, 16), np.float32)
    four = Streams([ahead.chosen[0][:4]], [ahead.floats[0][:4]])
    found = SharedInputs.measured(Streams(zeros, zeros), 16, (weight, four)).target(weight)
    assert np.array_equal(found, weight)


def test_the_ridge_grows_where_tokens_are_few() -> None:
    assert ridge_of(1024, 32_768) == 0.03
    assert ridge_of(3072, 6144) == pytest.approx(0.35)
    assert ridge_of(6144, 4096) == pytest.approx(1.05)


def test_few_tokens_do_not_drown_the_weights_in_their_noise() -> None:
    """Where streams differ by noise alone, targets of few tokens are nearer to the weights that most tokens ask for."""
    weight = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    random = np.random.default_rng(1)

    def target(tokens: int) -> np.ndarray:
        floats = [random.standard_normal((tokens, 64)).astype(np.float32)]
        return SharedInputs.measured(Streams([x + 0.5 * noise(x, random) for x in floats], floats), 64).target(weight)

    wanted = target(100_000)
    assert np.linalg.norm(target(80) - wanted) < 0.5 * np.linalg.norm(weight)


def noise(x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return random.standard_normal(x.shape).astype(np.float32)
