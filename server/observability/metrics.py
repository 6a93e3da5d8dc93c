"""Prometheus metrics of HTTP requests, and what the access log and traces tell of one: numbers and names, no text."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from engine.errors import BusyReason
from engine.request import RequestTimings, SamplingParams

_KEY = "hexserve_facts"  # in the state of an ASGI scope
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
class Launched:
    """What was given to the engine. `at`: seconds of a monotonic clock. choices: sequences, of embeddings the inputs.
    params: of the first choice; None where vectors are wanted."""

    id: str
    model: str
    choices: int
    prompt_tokens: int
    params: SamplingParams | None
    at: float


@dataclass(frozen=True, slots=True)
class SequenceEnd:
    """One choice ended: stop, length, abort or error. `timings` are None when the engine did not end it."""

    reason: str
    timings: RequestTimings | None


@dataclass(slots=True)
class RequestFacts:
    """Filled while the request runs. Times are seconds of a monotonic clock."""

    started_at: float = field(default_factory=time.perf_counter)
    handler: str = "other"
    status: int = 0
    launched: Launched | None = None
    first_token_at: float | None = None
    ended: list[SequenceEnd] = field(default_factory=list)

    @property
    def timings(self) -> tuple[RequestTimings, ...]:
        return tuple(end.timings for end in self.ended if end.timings is not None)

    @property
    def guesses(self) -> tuple[int, int]:
        return sum(each.accepted_tokens for each in self.timings), sum(each.drafted_tokens for each in self.timings)

    def first_token(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.perf_counter()


def facts_of(scope: Mapping[str, Any]) -> RequestFacts:
    """Those of the request with this ASGI scope; of one that nobody watches, new ones that nobody reads."""
    found = scope.get("state", {}).get(_KEY)
    return cast(RequestFacts, found) if found is not None else RequestFacts()


def watched(scope: Any) -> RequestFacts:
    """New facts of the request with this ASGI scope, where `facts_of` finds them."""
    facts = RequestFacts()
    scope.setdefault("state", {})[_KEY] = facts
    return facts


class Metrics:
    def __init__(self, models: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(models)
        labels = ("model_name",)
        self.histograms = {
            name: Histogram(f"vllm:{name}", text, labels, registry=self._registry, buckets=buckets)
            for name, text, buckets in HISTOGRAMS
        }
        counter = partial(Counter, registry=self._registry)
        self.success = counter("vllm:request_success", "Finished sequences.", (*labels, "finished_reason"))
        self.rejections = counter("vllm:admission_rejections", "Requests refused because of load.", ("reason",))
        text = "Answered HTTP requests, refused ones included; other: a path that is not served."
        self.answers = counter("http_requests", text, ("method", "handler", "status"))

    def answered(self, method: str, handler: str, status: int) -> None:
        """An HTTP request was answered, or its client left before (status 499)."""
        self.answers.labels(method, handler, str(status)).inc()

    def rejected(self, reason: BusyReason) -> None:
        """A request was answered 503. Counted if the load was the reason; loading and draining are states."""
        if reason.is_load:
            self.rejections.labels(reason.value).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)


class RequestWatch:
    """Times of one HTTP request with `choices` as n, in seconds of a monotonic clock. model_name: what it asked for."""

    def __init__(self, metrics: Metrics, model_name: str, choices: int, max_tokens: int) -> None:
        self.submitted_at = time.perf_counter()
        self.spend: Callable[[int], None] | None = None  # counts tokens against the caller's limit
        self.facts = RequestFacts()  # of the HTTP request, once it is known
        self._model_name, self._metrics = model_name, metrics
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
        seen = {
            "e2e_request_latency_seconds": time.perf_counter() - self.submitted_at,
            "request_queue_time_seconds": timings.queue_ms / 1000,
            "request_prefill_time_seconds": timings.prompt_ms / 1000,
            "request_decode_time_seconds": timings.generate_ms / 1000,
            "request_prompt_tokens": timings.prompt_tokens,
            "request_generation_tokens": timings.generated_tokens,
        }
        if timings.generated_tokens > 1:
            seen["request_time_per_output_token_seconds"] = timings.generate_ms / 1000 / (timings.generated_tokens - 1)
        for name, value in seen.items():
            self._histograms[name].observe(value)
