"""A process whose OpenTelemetry providers are set before the app is made: what does the app tell them of a bad body?"""

import asyncio
import sys
from pathlib import Path

import httpx
from opentelemetry import _logs, trace
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

sys.path.insert(0, str(Path(__file__).parents[3]))


async def main() -> None:
    from engine.config import EngineConfig
    from server.middleware.auth import KeyRing
    from server.settings import Settings
    from tests.server.one_model import create_app
    from tests.server.scripted_engine import ScriptedEngine

    spans, logs = InMemorySpanExporter(), InMemoryLogRecordExporter()
    tracers, loggers = TracerProvider(), LoggerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    loggers.add_log_record_processor(SimpleLogRecordProcessor(logs))
    trace.set_tracer_provider(tracers)
    _logs.set_logger_provider(loggers)
    app = create_app(Settings(EngineConfig("unused")), ScriptedEngine(), KeyRing())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.post("/v1/chat/completions", json={"model": "scripted", "messages": "a secret"})
    found = len(spans.get_finished_spans()), len(logs.get_finished_logs())
    print(f"422 is {answer.status_code}: {found[0]} spans, {found[1]} logs")


if __name__ == "__main__":
    asyncio.run(main())
