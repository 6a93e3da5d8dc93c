"""Where time goes, stage by stage: two readings of a clock and one addition for each stage, so it always runs."""

from collections.abc import Callable, Mapping
from time import perf_counter


class StageClock:
    """Seconds of stages that follow each other. `clock` returns seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._last = 0.0

    @property
    def seconds(self) -> Mapping[str, float]:
        """Of every stage that was marked, since the start."""
        return self._seconds

    def begin(self) -> None:
        """What was before counts as nothing."""
        self._last = self._clock()

    def mark(self, stage: str) -> None:
        """The time since the mark before, or since `begin`, was `stage`."""
        now = self._clock()
        self._seconds[stage] = self._seconds.get(stage, 0.0) + now - self._last
        self._last = now
