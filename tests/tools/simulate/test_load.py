"""Times at which clients come."""

import pytest

from tools.simulate.load import starts


def test_all_at_once() -> None:
    assert starts(3, 0, 7) == (0.0, 0.0, 0.0)


def test_poisson_times_ascend_at_the_rate_and_follow_the_seed() -> None:
    times = starts(4000, 2.0, 1)
    assert list(times) == sorted(times)
    assert times[-1] / 4000 == pytest.approx(0.5, rel=0.05)
    assert starts(10, 2.0, 1) == times[:10]
    assert starts(10, 2.0, 2) != times[:10]
