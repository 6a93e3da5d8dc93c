"""Targets against least squares as numpy solves them."""

import numpy as np

from engine.compile.calibrated.statistics import RIDGE, SharedInputs
from engine.compile.calibrated.streams import Streams


def random_streams(width: int, seed: int) -> Streams:
    random = np.random.default_rng(seed)
    floats = [random.standard_normal((rows, width)).astype(np.float32) for rows in (40, 30)]
    return Streams([x + 0.2 * random.standard_normal(x.shape).astype(np.float32) for x in floats], floats)


def least_squares(weight: np.ndarray, inputs: Streams, added: list[np.ndarray]) -> np.ndarray:
    """min over W' of |x W'ᵀ - (y Wᵀ + d)|² + ridge |W' - W|², as one system of rows."""
    x, y = (np.concatenate(states).astype(np.float64) for states in (inputs.chosen, inputs.floats))
    pull = np.sqrt(RIDGE * np.square(x).sum() / x.shape[1])
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
    found = SharedInputs.measured(inputs, 16, ahead).target(weight)
    np.testing.assert_allclose(found, least_squares(weight, inputs, added), atol=2e-5)


def test_equal_streams_leave_the_weights_as_they_are() -> None:
    floats = random_streams(16, 1).floats
    weight = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    assert np.array_equal(SharedInputs.measured(Streams(floats, floats), 16).target(weight), weight)


def test_inputs_that_are_all_zero_leave_the_weights_as_they_are() -> None:
    zeros, ahead = [np.zeros((4, 16), np.float32)], random_streams(5, 2)
    weight = np.ones((5, 16), np.float32)
    four = Streams([ahead.chosen[0][:4]], [ahead.floats[0][:4]])
    assert np.array_equal(SharedInputs.measured(Streams(zeros, zeros), 16, four).target(weight), weight)
