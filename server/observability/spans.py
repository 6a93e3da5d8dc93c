"""Spans of requests, the layer that makes them, and their way to a collector."""

import logging
import threading
import time
from collections.abc import Mapping
from functools import partial

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagators.textmap import Getter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from engine.request import RequestTimings
from server.observability.metrics import Launched, RequestFacts, facts_of

Attribute = str | int | float | tuple[str, ...]
TEXT_PATHS = frozenset({"/v1/completions", "/api/generate"})
MOST_CHOICES = 32  # told one by one: a request may have a hundred thousand
ASKED = ("max_tokens", "temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty", "seed")
COUNTED = ("steps", "step_rows", "preemptions", "drafted_tokens", "accepted_tokens")
END_S = 1.0  # the end of the server waits no longer for a collector


def operation(facts: RequestFacts) -> str:
    """The convention's word for what a generation's route does."""
    if facts.launched is not None and facts.launched.params is None:
        return "rerank" if facts.handler.endswith("/rerank") else "embeddings"
    return "text_completion" if facts.handler in TEXT_PATHS else "chat"


def request_attributes(method: str, facts: RequestFacts) -> dict[str, Attribute]:
    found: dict[str, Attribute] = {
        "http.request.method": method,
        "http.route": facts.handler,
        "http.response.status_code": facts.status,
    }
    if facts.status >= 500:
        found["error.type"] = str(facts.status)
    if facts.launched is None:
        return found
    found |= {
        "gen_ai.operation.name": operation(facts),
        "gen_ai.provider.name": "hexserve",
        "gen_ai.response.id": facts.launched.id,
        "gen_ai.response.model": facts.launched.model,
        "gen_ai.usage.input_tokens": facts.launched.prompt_tokens,
    }
    if facts.ended:
        found["gen_ai.response.finish_reasons"] = tuple(end.reason for end in facts.ended[:MOST_CHOICES])
    if any(end.reason == "error" for end in facts.ended):
        found.setdefault("error.type", "generation")
    if facts.first_token_at is not None:
        found["gen_ai.response.time_to_first_chunk"] = facts.first_token_at - facts.launched.at
    if timings := facts.timings:
        found["gen_ai.usage.output_tokens"] = sum(each.generated_tokens for each in timings)
        found["gen_ai.usage.cache_read.input_tokens"] = sum(each.cached_tokens for each in timings)
    return found | _asked(facts.launched)


def _asked(launched: Launched) -> dict[str, Attribute]:
    """Of the request; what the model is served as stands for what was asked, which may be any text."""
    found: dict[str, Attribute] = {"gen_ai.request.model": launched.model}
    if launched.params is not None:
        found["gen_ai.request.choice.count"] = launched.choices
        asked = {f"gen_ai.request.{name}": getattr(launched.params, name) for name in ASKED}
        found |= {name: value for name, value in asked.items() if value is not None}
    return found


def phases(timings: RequestTimings) -> tuple[tuple[str, float, Mapping[str, Attribute]], ...]:
    counted = {f"hexserve.{name}": getattr(timings, name) for name in COUNTED}
    return (
        ("queue", timings.queue_ms, {}),
        ("prefill", timings.prompt_ms, {"hexserve.computed_tokens": timings.computed_tokens}),
        ("decode", timings.generate_ms, {"gen_ai.usage.output_tokens": timings.generated_tokens} | counted),
    )


class TraceLayer:
    """Around the access log, which writes the trace's id and notes what spans tell."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app, self._tracer = app, tracer
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":  # no span for each health check and scrape
            await self._app(scope, receive, send)
            return
        parent = self._propagator.extract(Headers(scope=scope), getter=_HeaderGetter())
        clock = _Clock()
        span = self._tracer.start_span("POST", parent, SpanKind.SERVER, start_time=clock.nanoseconds(clock.began))
        context = span.get_span_context()
        if context.trace_flags.sampled:
            scope.setdefault("state", {})["trace_id"] = f"{context.trace_id:032x}"
        try:
            await self._app(scope, receive, send)
        finally:
            self._end(span, facts_of(scope), clock)

    def _end(self, span: Span, facts: RequestFacts, clock: "_Clock") -> None:
        if span.is_recording():
            launched = facts.launched
            span.update_name(f"{operation(facts)} {launched.model}" if launched else f"POST {facts.handler}")
            attributes = request_attributes("POST", facts)
            span.set_attributes(attributes)
            if "error.type" in attributes:
                span.set_status(Status(StatusCode.ERROR))
            if launched is not None:
                self._phases(set_span_in_context(span), facts, clock, clock.nanoseconds(launched.at))
        span.end()

    def _phases(self, below: Context, facts: RequestFacts, clock: "_Clock", submitted: int) -> None:
        """The engine's times begin where the request was given to it. prepare: body, template, tokenizer, grammar."""
        prepare = self._tracer.start_span("prepare", below, start_time=clock.nanoseconds(facts.started_at))
        prepare.end(submitted)
        for timings in facts.timings[:MOST_CHOICES]:
            at = submitted
            for name, milliseconds, attributes in phases(timings):
                child = self._tracer.start_span(name, below, attributes=attributes, start_time=at)
                at += round(milliseconds * 1e6)
                child.end(at)


class _Clock:
    """Seconds of the monotonic clock as Unix nanoseconds: the steps of one request never go back."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self._unix = time.time_ns()

    def nanoseconds(self, at: float) -> int:
        return self._unix + round((at - self.began) * 1e9)


class _HeaderGetter(Getter[Headers]):
    def get(self, carrier: Headers, key: str) -> list[str] | None:
        return carrier.getlist(key) or None

    def keys(self, carrier: Headers) -> list[str]:
        return list(carrier.keys())


class Tracing:
    """The ASGI layer whose spans go to `processor`, until `close`."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        named = Resource.create().merge(Resource({SERVICE_NAME: "hexserve", SERVICE_VERSION: version}))
        resource = named.merge(OTELResourceDetector().detect())  # OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self.layer = partial(TraceLayer, tracer=self._provider.get_tracer("hexserve", version))

    def close(self) -> None:
        """Send what is left; returns after END_S at the latest."""
        ending = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        ending.start()
        ending.join(END_S)


def to_collector(traces_url: str | None, version: str) -> Tracing:
    """Spans go to this address, None: where the variables of OpenTelemetry say. ValueError: one of them is unusable."""
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # at WARNING it tells of each retry
    return Tracing(BatchSpanProcessor(OTLPSpanExporter(endpoint=traces_url)), version)
