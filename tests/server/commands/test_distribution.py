"""Percentiles against numpy's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.commands.distribution import Distribution, distribution, median, percentile, ratio

FLOATS = st.floats(-1e9, 1e9)


@given(st.lists(FLOATS, min_size=1), st.floats(0, 100))
def test_percentile_is_numpys(values: list[float], percent: float) -> None:
    expected = np.percentile(np.array(values), percent)
    assert percentile(sorted(values), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(st.lists(FLOATS, min_size=1))
def test_distribution_in_any_order(values: list[float]) -> None:
    found = distribution(values)
    p50, p90, p99 = np.percentile(np.array(values), [50, 90, 99])
    expected = (len(values), np.mean(values), p50, p90, p99, max(values))
    seen = (found.count, found.mean, found.p50, found.p90, found.p99, found.highest)
    assert seen == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_nothing_measured() -> None:
    assert distribution([]) == Distribution()
    assert median([]) is None
    assert ratio(None, 1.0) is None
    assert ratio(1.0, 0.0) is None
    assert ratio(3.0, 2.0) == 1.5


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1.0], -1), ([1.0], 101)])
def test_impossible_percentiles_are_refused(values: list[float], percent: float) -> None:
    with pytest.raises(ValueError, match="no percentile"):
        percentile(values, percent)
