"""When a worker hangs: decided from its answers to pings and from time that we ran ourselves. No I/O."""

from dataclasses import dataclass

from engine.messages import Heartbeat

PASS_FACTOR = 20.0  # a pass may take so many times what it should
UNKNOWN_FACTOR = 10.0  # nobody knows what the pass should take: so many times the least bound
RELOAD_FACTOR, RELOAD_FLOOR_S = 10.0, 120.0  # a replacement's time to load, measured by its predecessors'
LONGEST_PERIOD_S = 3.0
PERIODS_PER_BOUND = 10


@dataclass(frozen=True, slots=True)
class HangBounds:
    """Seconds after which a worker counts as hung; 0 = never.

    pass_s: without an answer, or in one pass; a pass that is expected to be long may take more.
    load_s: from its start until it is ready.
    """

    pass_s: float = 30.0
    load_s: float = 1800.0

    @property
    def period_s(self) -> float:
        """Seconds between two looks at the worker."""
        return min(LONGEST_PERIOD_S, self.pass_s / PERIODS_PER_BOUND) if self.pass_s else LONGEST_PERIOD_S

    def reload_s(self, slowest_load_s: float) -> float:
        """The bound on loading for a worker after one that took `slowest_load_s`: streams wait for this one."""
        return min(self.load_s, max(RELOAD_FLOOR_S, RELOAD_FACTOR * slowest_load_s))


USUAL_BOUNDS = HangBounds()


class Watchdog:
    """Watches one worker from its start.

    A step from one tick to the next counts for two periods at most: where this process was itself stopped, asleep or
    busy for longer, the worker could not be heard or was stopped as well.
    """

    def __init__(self, bounds: HangBounds, load_s: float, now_s: float) -> None:
        self._bounds = bounds
        self._load_bound_s = load_s
        self._then_s = now_s
        self._is_ready = False
        self._is_asked = False
        self._last = Heartbeat(False, 0, 0.0)
        self._silent_s = self._stuck_s = 0.0
        self.load_s = 0.0  # seconds it has loaded, or took to

    def ready(self) -> None:
        """It has loaded; from now on it answers pings."""
        self._is_ready = True

    def heard(self, beat: Heartbeat) -> None:
        """It answered. Only a new pass, or nothing to do, shows that the passes end."""
        if not beat.is_busy or beat.passes != self._last.passes:
            self._stuck_s = 0.0
        self._last = beat
        self._is_asked = False
        self._silent_s = 0.0

    def tick(self, now_s: float) -> str | None:
        """What is wrong with the worker at `now_s` (monotonic seconds), to be read after 'the worker'; None if well."""
        step_s = min(now_s - self._then_s, 2 * self._bounds.period_s)
        self._then_s = now_s
        if not self._is_ready:
            self.load_s += step_s
            is_late = 0 < self._load_bound_s <= self.load_s
            return f"was not ready after {self._load_bound_s:g} s" if is_late else None
        if not self._bounds.pass_s:
            return None
        self._silent_s += step_s if self._is_asked else 0.0
        self._stuck_s += step_s if self._last.is_busy else 0.0
        if self._silent_s >= self._bounds.pass_s:
            return f"did not answer for {self._silent_s:.0f} s"
        if self._stuck_s >= self._pass_bound_s():
            return f"has been in one pass for {self._stuck_s:.0f} s"
        return None

    def take_ping(self) -> bool:
        """True when a Ping is to be sent now: one at a time, so that a worker that does not read gathers none."""
        is_due = self._is_ready and bool(self._bounds.pass_s) and not self._is_asked
        self._is_asked = self._is_asked or is_due
        return is_due

    def _pass_bound_s(self) -> float:
        least_s, expected_ms = self._bounds.pass_s, self._last.expected_ms
        return max(least_s, PASS_FACTOR * expected_ms / 1000) if expected_ms else UNKNOWN_FACTOR * least_s
