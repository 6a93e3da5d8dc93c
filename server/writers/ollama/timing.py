"""When an answer was made and what it took, in Ollama's fields: RFC 3339 and nanoseconds."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.request import RequestTimings

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000 * MILLISECOND_NS
LONGEST_S = 100 * 365 * 86_400
NEVER = "9999-12-31T23:59:59Z"


@dataclass(frozen=True, slots=True)
class Clock:
    """Two clocks in nanoseconds: one that only runs forward, and Unix time."""

    monotonic_ns: Callable[[], int] = time.perf_counter_ns
    unix_ns: Callable[[], int] = time.time_ns

    def stamp(self, in_s: float | None = 0.0) -> str:
        """The time in so many seconds; None is never."""
        if in_s is None or in_s > LONGEST_S:
            return NEVER
        return rfc3339(self.unix_ns() + round(in_s * SECOND_NS))


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """When a request came, and when its model was there, by the clock's monotonic time."""

    clock: Clock
    came_ns: int
    loaded_ns: int

    def durations(self, timings: RequestTimings | None) -> dict[str, int]:
        """The four durations of an answer that is complete now.

        The parts of the engine are at least a nanosecond: clients divide counts of tokens by them.
        """
        prompt_ms, generate_ms = (timings.prompt_ms, timings.generate_ms) if timings is not None else (0.0, 0.0)
        return {
            "total_duration": self.clock.monotonic_ns() - self.came_ns,
            "load_duration": self.loaded_ns - self.came_ns,
            "prompt_eval_duration": max(1, round(prompt_ms * MILLISECOND_NS)),
            "eval_duration": max(1, round(generate_ms * MILLISECOND_NS)),
        }


def rfc3339(unix_ns: int) -> str:
    """UTC with nine digits of a second, as Go writes it."""
    seconds, rest = divmod(unix_ns, SECOND_NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"
