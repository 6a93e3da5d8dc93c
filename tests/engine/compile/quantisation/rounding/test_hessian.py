"""Statistics of calibration inputs against their definitions."""

import numpy as np
import pytest

from engine.compile.quantisation.rounding import codes
from engine.compile.quantisation.rounding.codes import InputStatistics, damped, damping_of, in_runs, output_errors
from engine.errors import CompileError


def inputs(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def test_batches_of_any_size_add_up_to_twice_the_products() -> None:
    x = inputs(3000, 24)
    statistics = InputStatistics(24)
    for part in (x[:1], x[1:700].reshape(3, 233, 24), x[700:]):
        statistics.add(part)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(statistics.hessian, 2 * exact.T @ exact, rtol=1e-5, atol=1e-3)
    assert statistics.rows == 3000


def test_a_small_batch_after_large_ones_is_not_lost() -> None:
    statistics = InputStatistics(1)
    statistics.add(np.full((1, 1), 2.0**13, np.float32))
    for _ in range(8):
        statistics.add(np.ones((1, 1), np.float32))
    assert statistics.hessian[0, 0] == 2 * (2.0**26 + 8)  # float32 would stay at 2 ** 27


def test_inputs_that_are_not_finite() -> None:
    statistics = InputStatistics(2)
    with pytest.raises(CompileError, match="not finite"):
        statistics.add(np.array([[1.0, np.nan]], np.float32))


def test_damping_adds_its_share_of_the_mean_diagonal() -> None:
    hessian = np.array([[4.0, 1.0], [1.0, 2.0]])
    assert np.array_equal(damped(hessian, 0.5), [[5.5, 1.0], [1.0, 3.5]])
    assert np.array_equal(hessian, [[4.0, 1.0], [1.0, 2.0]])
    assert np.array_equal(damped(np.zeros((2, 2)), 0.01), np.eye(2))
    with pytest.raises(ValueError, match="damping"):
        damped(hessian, 0.0)


def test_damping_grows_where_tokens_are_few() -> None:
    assert damping_of(1024, 131_072) == 0.01
    assert damping_of(3072, 6144) == 0.25
    assert damping_of(6144, 4096) == 0.75


def test_the_error_of_an_output_is_twice_its_squared_difference() -> None:
    x, weight, rounded = inputs(50, 8), inputs(3, 8, 1), inputs(3, 8, 2)
    statistics = InputStatistics(8)
    statistics.add(x)
    expected = 2 * np.square(x @ (weight - rounded).T).sum(axis=0)
    np.testing.assert_allclose(output_errors(weight, rounded, statistics.hessian), expected, rtol=1e-4)


def test_texts_come_in_runs_that_the_last_text_of_each_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "RUN", 10)
    texts = [np.full((length, 2), length, np.float32) for length in (4, 5, 3, 12, 1, 1)]
    runs = list(in_runs(texts))
    assert [len(run) for run in runs] == [12, 12, 2]
    assert np.array_equal(np.concatenate(runs), np.concatenate(texts))
    assert not list(in_runs([]))
