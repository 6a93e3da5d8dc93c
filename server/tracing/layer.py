"""The ASGI layer that makes a span of each POST request, below the caller's own where it names one (traceparent)."""

import time

from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.request_facts import RequestFacts, facts_of
from server.tracing.attributes import MOST_CHOICES, phases, request_attributes, span_name

PREPARE = "prepare"  # body, chat template, tokenizer, grammar


class TraceLayer:
    """Around the access log, which writes the trace's id and notes what spans tell."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
            span.update_name(span_name("POST", facts))
            attributes = request_attributes("POST", facts)
            span.set_attributes(attributes)
            if "error.type" in attributes:
                span.set_status(Status(StatusCode.ERROR))
            self._phases(span, facts, clock)
        span.end()

    def _phases(self, span: Span, facts: RequestFacts, clock: "_Clock") -> None:
        """The engine's times begin where the request was given to it."""
        if facts.launched is None:
            return
        below = set_span_in_context(span)
        submitted = clock.nanoseconds(facts.launched.at)
        prepare = self._tracer.start_span(PREPARE, below, start_time=clock.nanoseconds(facts.started_at))
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
