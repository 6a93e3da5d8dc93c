"""Spans of real requests to the app, in the SDK's memory: names, times, parents, attributes, and no text."""

import json
import logging
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes
from opentelemetry.trace import SpanKind, StatusCode

from engine.config import EngineConfig
from engine.errors import EngineFailure
from server.middleware.access_log import ACCESS_LOGGER
from server.middleware.auth import KeyRing
from server.observability.spans import MOST_CHOICES, Tracing
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine

SECRET = "xyzzy"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 9, "stop": [SECRET]}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SPANS = ["prepare", "queue", "prefill", "decode", "chat scripted"]


@pytest.fixture
def memory() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(memory: InMemorySpanExporter) -> Iterator[Tracing]:
    tracing = Tracing(SimpleSpanProcessor(memory), "1.2.3")
    yield tracing
    tracing.close()


@pytest.fixture
async def traced(engine: ScriptedEngine, tracing: Tracing) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(EngineConfig("unused"), access_log="json"), engine, KeyRing(), layers=[tracing.layer])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


def by_name(memory: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in memory.get_finished_spans()}


def milliseconds(span: ReadableSpan) -> float:
    assert span.start_time is not None and span.end_time is not None
    return (span.end_time - span.start_time) / 1e6


@pytest.mark.parametrize("is_stream", [False, True])
async def test_the_spans_of_a_chat(traced: httpx.AsyncClient, memory: InMemorySpanExporter, is_stream: bool) -> None:
    asked = CHAT | {"temperature": 0.5, "seed": 7, "stream": is_stream}
    answer = await traced.post("/v1/chat/completions", json=asked)
    assert [span.name for span in memory.get_finished_spans()] == SPANS
    spans = by_name(memory)
    root = spans["chat scripted"]
    assert root.kind is SpanKind.SERVER and root.parent is None and root.status.status_code is StatusCode.UNSET
    assert [milliseconds(spans[name]) for name in ("queue", "prefill", "decode")] == [1.0, 20.0, 30.0]
    assert spans["prepare"].end_time == spans["queue"].start_time
    assert spans["queue"].end_time == spans["prefill"].start_time
    assert spans["prefill"].end_time == spans["decode"].start_time
    assert root.context is not None
    assert {span.parent.span_id for span in spans.values() if span.parent} == {root.context.span_id}
    told = dict(root.attributes or {})
    first = told.pop("gen_ai.response.time_to_first_chunk")
    assert isinstance(first, float) and first >= 0
    given = {} if is_stream else {"gen_ai.response.id": answer.json()["id"]}
    assert told == told | given | {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "hexserve",
        "gen_ai.request.model": "scripted",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 3,
    }
    assert dict(root.resource.attributes)["service.name"] == "hexserve"
    assert dict(root.resource.attributes)["service.version"] == "1.2.3"


async def test_no_text_of_a_request_or_an_answer(traced: httpx.AsyncClient, memory: InMemorySpanExporter) -> None:
    await traced.post("/v1/chat/completions", json=CHAT)
    await traced.post("/v1/completions", json={"model": "scripted", "prompt": SECRET, "suffix": SECRET})
    await traced.post("/v1/chat/completions", json=CHAT | {"model": SECRET})
    await traced.post(f"/{SECRET}?{SECRET}", json={})
    written = "".join(span.to_json() for span in memory.get_finished_spans())
    assert SECRET not in written and "Hello" not in written and "friend" not in written
    assert written.count("POST other") == 1


async def test_every_attribute_is_one_of_the_conventions_or_ours(
    traced: httpx.AsyncClient, memory: InMemorySpanExporter
) -> None:
    modules = (gen_ai_attributes, http_attributes, error_attributes)
    known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    await traced.post("/v1/chat/completions", json=CHAT | {"seed": 1})
    names = {name for span in memory.get_finished_spans() for name in span.attributes or {}}
    assert {name for name in names if not name.startswith("hexserve.")} <= known and len(names) > 15


async def test_the_callers_trace_goes_on(
    traced: httpx.AsyncClient, memory: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        await traced.post("/v1/chat/completions", json=CHAT, headers=headers)
    root = by_name(memory)["chat scripted"]
    assert root.parent is not None and root.context is not None
    assert f"{root.context.trace_id:032x}" == TRACE and f"{root.parent.span_id:016x}" == PARENT
    assert root.context.trace_state.get("vendor") == "1"
    (line,) = (record.getMessage() for record in caplog.records if record.name == ACCESS_LOGGER)
    assert json.loads(line)["trace_id"] == TRACE


async def test_a_caller_that_does_not_sample_is_not_traced(
    traced: httpx.AsyncClient, memory: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        await traced.post("/v1/chat/completions", json=CHAT, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert memory.get_finished_spans() == () and "trace_id" not in caplog.text


@pytest.mark.parametrize("header", ["", "00-0-0-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "é" * 500])
async def test_a_damaged_traceparent_begins_a_new_trace(
    traced: httpx.AsyncClient, memory: InMemorySpanExporter, header: str
) -> None:
    answer = await traced.post("/v1/chat/completions", json=CHAT, headers={"traceparent": header.encode("latin-1")})
    assert answer.status_code == 200 and by_name(memory)["chat scripted"].parent is None


async def test_each_choice_has_its_phases(traced: httpx.AsyncClient, memory: InMemorySpanExporter) -> None:
    await traced.post("/v1/completions", json={"model": "scripted", "prompt": ["a", "b"], "n": 2, "max_tokens": 9})
    names = [span.name for span in memory.get_finished_spans()]
    assert names == ["prepare", *4 * ["queue", "prefill", "decode"], "text_completion scripted"]


async def test_failures_are_errors_and_refusals_are_not(
    traced: httpx.AsyncClient, memory: InMemorySpanExporter, engine: ScriptedEngine
) -> None:
    await traced.post("/v1/chat/completions", json=CHAT | {"n": -1})
    engine.script = lambda _: [EngineFailure("it broke")]
    await traced.post("/v1/chat/completions", json=CHAT)
    refused, failed = (span for span in memory.get_finished_spans() if span.kind is SpanKind.SERVER)
    assert refused.name == "POST /v1/chat/completions" and refused.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
    assert dict(failed.attributes or {})["gen_ai.response.finish_reasons"] == ("error",)
    assert dict(failed.attributes or {})["error.type"] == "500"


async def test_no_span_for_scrapes_and_health_checks(traced: httpx.AsyncClient, memory: InMemorySpanExporter) -> None:
    for path in ("/health", "/metrics", "/v1/models"):
        await traced.get(path)
    assert memory.get_finished_spans() == ()


async def test_embeddings_are_told_without_what_only_generations_have(
    traced: httpx.AsyncClient, memory: InMemorySpanExporter, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.embed()
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        answer = await traced.post("/v1/embeddings", json={"model": "scripted", "input": ["3 4", "9"]})
    assert answer.status_code == 200
    assert [span.name for span in memory.get_finished_spans()] == ["prepare", "embeddings scripted"]
    told = dict(by_name(memory)["embeddings scripted"].attributes or {})
    assert (told["gen_ai.operation.name"], told["gen_ai.usage.input_tokens"]) == ("embeddings", 5)
    assert not {name for name in told if "temperature" in name or "finish" in name}
    (line,) = (record.getMessage() for record in caplog.records if record.name == ACCESS_LOGGER)
    logged = json.loads(line)
    assert (logged["model"], logged["choices"], logged["prompt_tokens"]) == ("scripted", 2, 5)
    assert "finish_reasons" not in logged


async def test_of_many_choices_only_some_are_told_one_by_one(
    traced: httpx.AsyncClient, memory: InMemorySpanExporter, engine: ScriptedEngine
) -> None:
    engine.max_queued = 1000
    asked = {"model": "scripted", "prompt": ["a"] * 40, "max_tokens": 9}
    assert (await traced.post("/v1/completions", json=asked)).status_code == 200
    spans = memory.get_finished_spans()
    assert len(spans) == 2 + 3 * MOST_CHOICES < 2 + 3 * 40
    told = dict(by_name(memory)["text_completion scripted"].attributes or {})
    assert told["gen_ai.response.finish_reasons"] == ("stop",) * MOST_CHOICES
    assert told["gen_ai.usage.output_tokens"] == 40 * 5
