"""Timings of finished requests, kept as a short rolling record. Standard library only."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import RequestTimings

KEPT_REQUESTS = 1024


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity over the recorded requests: the latest value, the mean, and how many values there were."""

    last: float
    mean: float
    samples: int


@dataclass(frozen=True, slots=True)
class TimingsSummary:
    """Milliseconds per request, tokens per second of each phase, useful rows per pass, accepted per drafted guess."""

    prompt_ms: Measure
    generate_ms: Measure
    prompt_tps: Measure
    generate_tps: Measure
    rows_per_pass: Measure
    acceptance: Measure

    def line(self) -> str:
        """The means in one line, in the form of `RequestTimings.line`."""
        return (
            f"requests:{self.prompt_ms.samples} "
            f"prompt:{self.prompt_ms.mean:.1f}ms generate:{self.generate_ms.mean:.1f}ms "
            f"tps:prompt={self.prompt_tps.mean:.1f} generate={self.generate_tps.mean:.1f} "
            f"rows/pass={self.rows_per_pass.mean:.1f} acceptance={self.acceptance.mean:.2f}"
        )


class TimingsRecord:
    """The last `kept` finished requests. Owned by the client; a request is added once, when it finishes."""

    def __init__(self, kept: int = KEPT_REQUESTS) -> None:
        self._finished: deque[RequestTimings] = deque(maxlen=kept)

    def add(self, timings: RequestTimings) -> None:
        """Record one finished request."""
        self._finished.append(timings)

    def summary(self) -> TimingsSummary:
        """Means over the record. Quantities a request does not have (a rate without tokens) are left out of theirs."""
        kept = self._finished
        return TimingsSummary(
            prompt_ms=_measure([one.prompt_ms for one in kept]),
            generate_ms=_measure([one.generate_ms for one in kept]),
            prompt_tps=_measure([_rate(one.prompt_tokens - one.cached_tokens, one.prompt_ms) for one in kept]),
            generate_tps=_measure([_rate(one.generated_tokens - 1, one.generate_ms) for one in kept]),
            rows_per_pass=_measure([one.pass_rows / one.passes if one.passes else None for one in kept]),
            acceptance=_measure(
                [one.accepted_tokens / one.drafted_tokens if one.drafted_tokens else None for one in kept]
            ),
        )


def _rate(tokens: int, milliseconds: float) -> float | None:
    return 1000.0 * tokens / milliseconds if tokens > 0 and milliseconds > 0 else None


def _measure(values: Sequence[float | None]) -> Measure:
    known = [value for value in values if value is not None]
    if not known:
        return Measure(0.0, 0.0, 0)
    return Measure(known[-1], sum(known) / len(known), len(known))
