"""Spans to a collector over OTLP/HTTP, from a thread of its own: one that is slow or dead costs spans, not requests."""

import logging
import threading
from functools import partial

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from server.tracing.layer import TraceLayer

END_S = 1.0  # the end of the server waits no longer for a collector


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
