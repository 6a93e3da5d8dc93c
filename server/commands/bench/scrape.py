"""The engine's counters as a hexserve's /metrics shows them, and what happened between two readings."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from server.commands.distribution import ratio


@dataclass(frozen=True, slots=True)
class ScrapedCounters:
    """Counters since the server started; times in seconds. A difference of two readings has the same fields."""

    passes: float
    rows_used: float
    rows_run: float
    decode_rows: float
    prefill_rows: float
    run_s: float
    step_s: float
    prefix_queries: float
    prefix_hits: float
    preemptions: float
    drafted_rows: float = 0.0
    accepted_rows: float = 0.0

    @property
    def useful_rows_per_pass(self) -> float | None:
        """Rows that belonged to a sequence, per graph pass."""
        return ratio(self.rows_used, self.passes)

    @property
    def decode_rows_per_pass(self) -> float | None:
        """Rows that continued an answer, per graph pass."""
        return ratio(self.decode_rows, self.passes)

    @property
    def tokens_per_decode(self) -> float | None:
        """Tokens of a sequence in a pass that continues its answer: 1, and the guesses that were right."""
        return ratio(self.decode_rows - self.drafted_rows + self.accepted_rows, self.decode_rows - self.drafted_rows)

    @property
    def rows_run_per_pass(self) -> float | None:
        """Rows the graph computed per pass, padding included."""
        return ratio(self.rows_run, self.passes)

    @property
    def outside_graph(self) -> float | None:
        """Share of the engine's steps not spent in the graphs, copies and re-laying of pools included: 0 to 1."""
        inside = ratio(self.run_s, self.step_s)
        return None if inside is None else 1 - inside


SAMPLES: Mapping[str, str] = {
    "passes": "hexserve:passes_total",
    "rows_used": "hexserve:rows_used_total",
    "rows_run": "hexserve:rows_run_total",
    "decode_rows": "hexserve:decode_rows_total",
    "prefill_rows": "hexserve:prefill_rows_total",
    "run_s": "hexserve:run_seconds_total",
    "step_s": "hexserve:step_seconds_total",
    "prefix_queries": "vllm:prefix_cache_queries_total",
    "prefix_hits": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "drafted_rows": "hexserve:drafted_rows_total",
    "accepted_rows": "hexserve:accepted_rows_total",
}
STAGES = "hexserve:stage_seconds_total"
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at /metrics. `unfinished`: sequences that still run or wait."""

    counters: ScrapedCounters
    unfinished: float


def read_metrics(text: str) -> Reading | None:
    """Parse a Prometheus exposition; None when it is not a hexserve's, or cannot be parsed."""
    values: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    except ValueError:
        return None
    if any(name not in values for name in SAMPLES.values()):
        return None
    counters = ScrapedCounters(**{field: values[name] for field, name in SAMPLES.items()})
    return Reading(counters, sum(values.get(name, 0.0) for name in BUSY))


def read_stages(text: str) -> dict[str, float]:
    """Seconds by stage of the engine's steps; empty when a server has none or the exposition cannot be parsed."""
    try:
        families = list(text_string_to_metric_families(text))
    except ValueError:
        return {}
    samples = [sample for family in families for sample in family.samples if sample.name == STAGES]
    return {sample.labels["stage"]: sample.value for sample in samples}


def between(before: ScrapedCounters, after: ScrapedCounters) -> ScrapedCounters:
    """What was counted from `before` to `after`."""
    fields = [field.name for field in dataclasses.fields(ScrapedCounters)]
    return ScrapedCounters(**{name: getattr(after, name) - getattr(before, name) for name in fields})


def total(parts: list[ScrapedCounters]) -> ScrapedCounters | None:
    """The sum of several differences, None without any."""
    if not parts:
        return None
    fields = [field.name for field in dataclasses.fields(ScrapedCounters)]
    return ScrapedCounters(**{name: sum(getattr(part, name) for part in parts) for name in fields})
