"""/metrics: vLLM's names, so that dashboards and autoscalers read them, and hexserve's own counters of rows and steps.

Counters of the engine are read at scrape time from its `Stats`; times per request are observed as they happen.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.client.engine import EngineInfo, EngineState
from engine.errors import BusyReason
from engine.messages import Stats
from engine.request import RequestTimings
from server.observability.request_facts import RequestFacts, SequenceEnd

LATENCY_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
TOKEN_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
CHOICES = (1, 2, 5, 10, 20, 50, 100)
HISTOGRAMS: tuple[tuple[str, str, tuple[float, ...]], ...] = (
    ("time_to_first_token_seconds", "Time to the first token of a request.", LATENCY_S),
    ("inter_token_latency_seconds", "Time between two tokens of a request.", TOKEN_S),
    ("request_time_per_output_token_seconds", "Mean time per token of a request after its first.", TOKEN_S),
    ("e2e_request_latency_seconds", "Time from submission to the last token.", LATENCY_S),
    ("request_queue_time_seconds", "Time a request waited before its first row ran.", LATENCY_S),
    ("request_prefill_time_seconds", "Time from a request's first row to its first token.", LATENCY_S),
    ("request_decode_time_seconds", "Time from a request's first token to its last.", LATENCY_S),
    ("request_prompt_tokens", "Prompt tokens of a request.", TOKENS),
    ("request_generation_tokens", "Tokens a request generated.", TOKENS),
    ("request_params_n", "n of a request.", CHOICES),
    ("request_params_max_tokens", "Most tokens a request may generate.", TOKENS),
)


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """What one model has counted. restarts: workers replaced. unfinished: requests that wait or run.

    info: None while it is not loaded.
    """

    name: str
    stats: Stats
    restarts: int
    unfinished: int
    info: EngineInfo | None


class MeasuredModels(Protocol):
    """The models whose counters are shown."""

    @property
    def state(self) -> EngineState:
        """The state of the server as far as it depends on its models."""

    @property
    def measured(self) -> Sequence[MeasuredModel]:
        """All models, at least one; Busy while an only model loads."""


class EngineCollector(Collector):
    """Turns the engines' counters into metric families at scrape time."""

    def __init__(self, models: MeasuredModels) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """All families; those that need a loaded model are left out while an only one loads."""
        state = self._models.state
        ready = GaugeMetricFamily("hexserve:ready", "1 when requests are taken and answered.", labels=["state"])
        ready.add_metric([state.value], float(state is EngineState.READY))
        yield ready
        if state is not EngineState.LOADING:
            found: dict[str, Metric] = {}
            for model in self._models.measured:
                for family in _ModelFamilies(model).collect():
                    if family.name in found:
                        found[family.name].samples += family.samples
                    else:
                        found[family.name] = family
            yield from found.values()


class _ModelFamilies:
    """The families of one model."""

    def __init__(self, model: MeasuredModel) -> None:
        self._engine = model

    def collect(self) -> Iterator[Metric]:
        """All of them."""
        name = self._engine.name
        for metric, text, value in self._counters():
            counter = CounterMetricFamily(metric, text, labels=["model_name"])
            counter.add_metric([name], value)
            yield counter
        stages = CounterMetricFamily(
            "hexserve:stage_seconds",
            "Time of engine steps by stage; 'graph: ...' are parts of 'graph'.",
            labels=["model_name", "stage"],
        )
        for stage, seconds in self._engine.stats.stages.items():
            stages.add_metric([name, stage], seconds)
        yield stages
        yield from self._guesses(name)
        for metric, text, value in self._gauges():
            gauge = GaugeMetricFamily(metric, text, labels=["model_name"])
            gauge.add_metric([name], value)
            yield gauge
        info = self._engine.info
        if info is not None:
            device = GaugeMetricFamily(
                "hexserve:device_info", "What really computes.", labels=["model_name", "device", "fingerprint"]
            )
            device.add_metric([name, info.device, info.fingerprint], 1.0)
            yield device

    def _guesses(self, name: str) -> tuple[CounterMetricFamily, ...]:
        """Guesses by where they came from."""
        stats, labels = self._engine.stats, ["model_name", "kind"]
        drafted = CounterMetricFamily("hexserve:guesses", "Guessed tokens by their source.", labels=labels)
        accepted = CounterMetricFamily("hexserve:guesses_accepted", "Those that were right.", labels=labels)
        for kind, rows, right in (
            ("lookup", stats.lookup_rows, stats.lookup_accepted),
            ("prediction", stats.prediction_rows, stats.prediction_accepted),
            ("draft", stats.draft_rows, stats.draft_accepted),
            ("forecast", stats.forecast_rows, stats.forecast_accepted),
        ):
            drafted.add_metric([name, kind], rows)
            accepted.add_metric([name, kind], right)
        return drafted, accepted

    def _counters(self) -> tuple[tuple[str, str, float], ...]:
        stats = self._engine.stats
        return (
            ("vllm:prompt_tokens", "Prompt tokens taken in.", stats.prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", stats.generated_tokens),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits),
            ("vllm:num_preemptions", "Sequences that gave their columns back.", stats.preemptions),
            ("hexserve:hand_overs", "Sequences that went to another device.", stats.hand_overs),
            ("hexserve:steps", "Graph steps run.", stats.steps),
            ("hexserve:rows_used", "Useful rows of all steps.", stats.rows_used),
            ("hexserve:rows_run", "Rows of all steps, padding included.", stats.rows_run),
            ("hexserve:decode_rows", "Rows that decoded.", stats.decode_rows),
            ("hexserve:prefill_rows", "Rows that prefilled.", stats.prefill_rows),
            ("vllm:spec_decode_num_draft_tokens", "Guessed tokens.", stats.drafted_rows),
            ("vllm:spec_decode_num_accepted_tokens", "Guessed tokens that were right.", stats.accepted_rows),
            ("hexserve:drafted_rows", "Rows with a guessed token.", stats.drafted_rows),
            ("hexserve:accepted_rows", "Guessed tokens that were right.", stats.accepted_rows),
            ("hexserve:graph_switches", "Steps with another variant than the one before.", stats.variant_switches),
            ("hexserve:relayouts", "Times the pool was laid out anew for another variant.", stats.relayouts),
            ("hexserve:experts_chosen", "Experts that rows chose, over all layers.", stats.experts_chosen),
            ("hexserve:experts_read", "Different experts that steps read, over all layers.", stats.experts_read),
            ("hexserve:draft_seconds", "Time in the draft model.", stats.draft_s),
            ("hexserve:run_seconds", "Time inside the graphs.", stats.run_s),
            ("hexserve:relayout_seconds", "Time re-laying the pool for variants of another width.", stats.relayout_s),
            ("hexserve:copy_seconds", "Time copying KV blocks to and from the host KV cache.", stats.copy_s),
            ("hexserve:step_seconds", "Time of whole engine steps.", stats.step_s),
            ("hexserve:worker_restarts", "Workers that died and were replaced.", self._engine.restarts),
        )

    def _gauges(self) -> tuple[tuple[str, str, float], ...]:
        stats = self._engine.stats
        used = stats.kv_slots_used / stats.kv_slots_total if stats.kv_slots_total else 0.0
        occupancy = stats.rows_used / stats.rows_run if stats.rows_run else 0.0
        return (
            ("vllm:num_requests_running", "Sequences that run.", stats.running),
            ("vllm:num_requests_waiting", "Sequences that wait.", stats.waiting),
            ("vllm:kv_cache_usage_perc", "Share of the pool's KV slots in use, 0 to 1.", used),
            ("hexserve:batch_occupancy", "Useful rows over rows run since the start, 0 to 1.", occupancy),
            ("hexserve:kv_slots_used", "KV slots in use.", stats.kv_slots_used),
            ("hexserve:kv_slots", "KV slots of the pool.", stats.kv_slots_total),
            ("hexserve:requests_unfinished", "Sequences the server has not finished.", self._engine.unfinished),
        )


class Metrics:
    """The registry and everything observed per request."""

    def __init__(self, models: MeasuredModels, further: Sequence[Collector] = ()) -> None:
        self._models = models
        self._registry = CollectorRegistry()
        for collector in (EngineCollector(models), *further):
            self._registry.register(collector)
        labels = ("model_name",)
        self.histograms = {
            name: Histogram(f"vllm:{name}", text, labels, registry=self._registry, buckets=buckets)
            for name, text, buckets in HISTOGRAMS
        }
        self.success = Counter(
            "vllm:request_success", "Finished sequences.", (*labels, "finished_reason"), registry=self._registry
        )
        self.rejections = Counter(
            "vllm:admission_rejections", "Requests refused because of load.", ("reason",), registry=self._registry
        )

        self.answers = Counter(
            "http_requests",
            "Answered HTTP requests, refused ones included; other: a path that is not served.",
            ("method", "handler", "status"),
            registry=self._registry,
        )

    def answered(self, method: str, handler: str, status: int) -> None:
        """An HTTP request was answered, or its client left before (status 499)."""
        self.answers.labels(method, handler, str(status)).inc()

    def rejected(self, reason: BusyReason) -> None:
        """A request was answered 503. Counted if the load was the reason; loading and draining are states."""
        if reason.is_load:
            self.rejections.labels(reason.value).inc()

    def watch(self, choices: int, max_tokens: int, model: str = "") -> "RequestWatch":
        """Start observing one HTTP request whose n is `choices`. model: the name it asked for, "" = the first."""
        return RequestWatch(self, model or self._models.measured[0].name, choices, max_tokens)

    def text(self) -> bytes:
        """The exposition in Prometheus' text format."""
        return generate_latest(self._registry)


class RequestWatch:
    """Times of one HTTP request, in seconds of a monotonic clock."""

    def __init__(self, metrics: Metrics, model_name: str, choices: int, max_tokens: int) -> None:
        self.submitted_at = time.perf_counter()
        self.spend: Callable[[int], None] | None = None  # counts tokens against the caller's limit
        self.facts = RequestFacts()  # of the HTTP request, once it is known
        self._model_name = model_name
        self._metrics = metrics
        self._histograms = {name: child.labels(model_name) for name, child in metrics.histograms.items()}
        self._histograms["request_params_n"].observe(choices)
        self._histograms["request_params_max_tokens"].observe(max_tokens)

    def tokens_arrived(self, count: int, previous: float) -> float:
        """`count` tokens came now, the ones before at `previous`; returns the time to pass next."""
        if not count:
            return previous
        if self.spend is not None:
            self.spend(count)
        self.facts.first_token()
        now = time.perf_counter()
        if previous == self.submitted_at:
            self._histograms["time_to_first_token_seconds"].observe(now - previous)
        else:
            self._histograms["inter_token_latency_seconds"].observe((now - previous) / count)
        return now

    def finished(self, reason: str, timings: RequestTimings | None) -> None:
        """One sequence ended: stop, length, abort or error."""
        self._metrics.success.labels(self._model_name, reason).inc()
        self.facts.ended.append(SequenceEnd(reason, timings))
        if timings is None:
            return
        seen = self._histograms
        seen["e2e_request_latency_seconds"].observe(time.perf_counter() - self.submitted_at)
        seen["request_queue_time_seconds"].observe(timings.queue_ms / 1000)
        seen["request_prefill_time_seconds"].observe(timings.prompt_ms / 1000)
        seen["request_decode_time_seconds"].observe(timings.generate_ms / 1000)
        seen["request_prompt_tokens"].observe(timings.prompt_tokens)
        seen["request_generation_tokens"].observe(timings.generated_tokens)
        if timings.generated_tokens > 1:
            seen["request_time_per_output_token_seconds"].observe(
                timings.generate_ms / 1000 / (timings.generated_tokens - 1)
            )
