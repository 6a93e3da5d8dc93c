"""Timings of finished requests, kept as a short rolling record. Standard library only."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import RequestKpi

KEPT_REQUESTS = 1024


@dataclass(frozen=True, slots=True)
class Measure:
    """One quantity over the recorded requests: the latest value, the mean, and how many values there were."""

    last: float
    mean: float
    samples: int


@dataclass(frozen=True, slots=True)
class KpiSummary:
    """Milliseconds per request, tokens per second of each phase, useful rows per pass, accepted per drafted guess."""

    prompt_ms: Measure
    generate_ms: Measure
    prompt_tps: Measure
    generate_tps: Measure
    rows_per_pass: Measure
    acceptance: Measure

    def line(self) -> str:
        """The means in one line, in the form of `RequestKpi.line`."""
        return (
            f"requests:{self.prompt_ms.samples} "
            f"prompt:{self.prompt_ms.mean:.1f}ms generate:{self.generate_ms.mean:.1f}ms "
            f"tps:prompt={self.prompt_tps.mean:.1f} generate={self.generate_tps.mean:.1f} "
            f"rows/pass={self.rows_per_pass.mean:.1f} acceptance={self.acceptance.mean:.2f}"
        )


class KpiRecord:
    """The last `kept` finished requests. Owned by the client; a request is added once, when it finishes."""

    def __init__(self, kept: int = KEPT_REQUESTS) -> None:
        self._finished: deque[RequestKpi] = deque(maxlen=kept)

    def add(self, kpi: RequestKpi) -> None:
        """Record one finished request."""
        self._finished.append(kpi)

    def summary(self) -> KpiSummary:
        """Means over the record. Quantities a request does not have (a rate without tokens) are left out of theirs."""
        kept = self._finished
        return KpiSummary(
            prompt_ms=_measure([kpi.prompt_ms for kpi in kept]),
            generate_ms=_measure([kpi.generate_ms for kpi in kept]),
            prompt_tps=_measure([_rate(kpi.prompt_tokens - kpi.cached_tokens, kpi.prompt_ms) for kpi in kept]),
            generate_tps=_measure([_rate(kpi.generated_tokens - 1, kpi.generate_ms) for kpi in kept]),
            rows_per_pass=_measure([kpi.pass_rows / kpi.passes if kpi.passes else None for kpi in kept]),
            acceptance=_measure(
                [kpi.accepted_tokens / kpi.drafted_tokens if kpi.drafted_tokens else None for kpi in kept]
            ),
        )


def _rate(tokens: int, milliseconds: float) -> float | None:
    return 1000.0 * tokens / milliseconds if tokens > 0 and milliseconds > 0 else None


def _measure(values: Sequence[float | None]) -> Measure:
    known = [value for value in values if value is not None]
    if not known:
        return Measure(0.0, 0.0, 0)
    return Measure(known[-1], sum(known) / len(known), len(known))
