"""Distributions against the standard library's quantiles."""

from statistics import mean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.commands.bench.measured import Distribution, distribution, median, percentile, ratio


@given(st.lists(st.floats(-1e9, 1e9), min_size=2))
def test_distribution_in_any_order(values: list[float]) -> None:
    found, cuts = distribution(values), quantiles(values, n=100, method="inclusive")
    expected = (len(values), mean(values), cuts[49], cuts[89], cuts[94], cuts[98], max(values))
    seen = (found.count, found.mean, found.p50, found.p90, found.p95, found.p99, found.highest)
    assert seen == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_nothing_measured() -> None:
    assert distribution([]) == Distribution()
    assert median([]) is None
    assert ratio(None, 1.0) is None
    assert ratio(1.0, 0.0) is None
    assert ratio(3.0, 2.0) == 1.5
    with pytest.raises(ValueError, match="no percentile"):
        percentile([], 50)
