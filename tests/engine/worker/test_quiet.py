"""Whether a measurement tells what a step takes on a quiet machine."""

import pytest

from engine.worker.step_times import MachineReading, disturbance, others_share

START = MachineReading(clock_s=100.0, own_s=3.0, busy_s=5000.0)
CASES = {
    "two cores, both ours": (MachineReading(102.0, 7.0, 5004.0), 2, 0.0),
    "two cores, one of them another's": (MachineReading(102.0, 5.0, 5004.0), 2, 0.5),
    "twelve cores, one of them another's for a while": (MachineReading(101.0, 14.0, 5011.6), 12, 0.05),
    "ticks that come late are nobody's": (MachineReading(101.0, 5.0, 5001.9), 2, 0.0),
    "too short to tell": (MachineReading(100.2, 3.2, 5000.4), 2, None),
    "a system that does not tell": (MachineReading(102.0, 7.0, None), 2, None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_share_of_others(name: str) -> None:
    after, cores, expected = CASES[name]
    assert others_share(START, after, cores) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("runs_ms", "others", "reason"),
    [
        ((100.0, 104.0), 0.02, ""),
        ((100.0, 104.0), None, ""),
        ((100.0, 129.0), 0.15, ""),
        ((100.0, 104.0), 0.5, "other programs used 50% of the processor"),
        ((100.0, 104.0), 0.151, "other programs used 15% of the processor"),
        ((160.0, 100.0), 0.0, "one run took 1.6 times as long as another"),
        ((160.0, 100.0), None, "one run took 1.6 times as long as another"),
        ((300.0, 101.0, 100.0), None, ""),  # the first one warms up
        ((0.4, 0.9), None, ""),  # of short steps a timer is half
        ((2.0, 3.5), None, "one run took 1.8 times as long as another"),
    ],
)
def test_what_disturbed_a_measurement(runs_ms: tuple[float, ...], others: float | None, reason: str) -> None:
    assert disturbance(runs_ms, others) == reason
