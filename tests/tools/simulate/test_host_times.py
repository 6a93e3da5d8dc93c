"""What the host adds to a step: one number, or as measured once."""

import pytest

from tools.simulate.host_times import MEASURED, HostTimes


def test_linear_between_the_measured_rows_and_flat_outside() -> None:
    times = HostTimes(((2.0, 1.0), (10.0, 5.0), (20.0, 5.5)), "")
    found = [times.milliseconds(rows) for rows in (0, 2, 4, 10, 15, 20, 128)]
    assert found == pytest.approx([1.0, 1.0, 2.0, 5.0, 5.25, 5.5, 5.5])
    assert HostTimes.constant(2.0).milliseconds(77) == 2.0
    assert MEASURED.milliseconds(1) < MEASURED.milliseconds(16)
