"""Whether a machine was quiet while something was measured on it. Pure: readings in, a sentence out."""

from collections.abc import Sequence
from dataclasses import dataclass

MOST_OTHERS = 0.15  # of the cores
LEAST_SEEN_S = 0.25  # systems count busy time in ticks of 10 or 16 ms
MOST_SPREAD = 1.3  # the slower of two runs over the faster
LEAST_SPREAD_MS = 1.0  # what a timer or a page fault takes says nothing about other programs


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Seconds: by the clock, of work of this process, and of work of all cores for whomever, None = not told."""

    clock_s: float
    own_s: float
    busy_s: float | None


def others_share(before: MachineReading, after: MachineReading, cores: int) -> float | None:
    """The share of all cores that other programs had; None where it is not told or the time is too short to tell."""
    seen_s = after.clock_s - before.clock_s
    if before.busy_s is None or after.busy_s is None or seen_s < LEAST_SEEN_S:
        return None
    others_s = after.busy_s - before.busy_s - (after.own_s - before.own_s)
    return max(0.0, others_s / (seen_s * cores))


def disturbance(runs_ms: Sequence[float], others: float | None) -> str:
    """What made the runs of one step useless as its time, for the log; '' where nothing did."""
    if others is not None and others > MOST_OTHERS:
        return f"other programs used {others:.0%} of the processor"
    fastest, slowest = min(runs_ms), max(runs_ms)
    if slowest > MOST_SPREAD * fastest and slowest - fastest > LEAST_SPREAD_MS:
        return f"one run took {slowest / fastest:.1f} times as long as another"
    return ""
