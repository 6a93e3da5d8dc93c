"""Spans over OTLP/HTTP to a collector that answers, refuses, is silent or is not there."""

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from engine.config import EngineConfig
from server.commands.own_server import free_port
from server.middleware.auth import KeyRing
from server.observability import spans
from server.observability.spans import Tracing, to_collector
from server.observability.tracing import traces_url
from server.settings import Settings
from tests.server.observability.collector import Collector, collecting
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine

SECRET = "xyzzy"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 9}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """`to_collector` sets a level for the whole process."""
    before = logging.getLogger("opentelemetry").level
    yield
    logging.getLogger("opentelemetry").setLevel(before)


@asynccontextmanager
async def client_of(tracing: Tracing) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(EngineConfig("unused")), ScriptedEngine(), KeyRing(), layers=[tracing.layer])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_a_collector_gets_the_spans_of_a_request(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=lab")
    tracing = to_collector(traces_url(collector.url + "/"), "1.2.3")
    async with client_of(tracing) as client:
        await client.post("/v1/chat/completions", json=CHAT, headers={"traceparent": f"00-{TRACE}-{'1' * 16}-01"})
    tracing.close()
    assert collector.paths == ["/v1/traces"]
    assert [span.name for span in collector.spans] == ["prepare", "queue", "prefill", "decode", "chat scripted"]
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    root = collector.spans[-1]
    assert root.parent_span_id.hex() == "1" * 16
    assert {span.parent_span_id for span in collector.spans[:-1]} == {root.span_id}
    values = {each.key: each.value for each in root.attributes}
    assert values["gen_ai.usage.output_tokens"].int_value == 5
    assert values["gen_ai.request.model"].string_value == "scripted"
    named = {"service.name": "hexserve", "service.version": "1.2.3", "deployment.environment.name": "lab"}
    assert collector.resource | named == collector.resource
    assert SECRET not in str(collector.requests) and "Hello" not in str(collector.requests)


async def test_requests_and_the_end_wait_for_no_silent_collector(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "END_S", 0.01)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    collector.holds = True
    tracing = to_collector(traces_url(collector.url), "")
    async with client_of(tracing) as client:
        statuses = [(await client.post("/v1/chat/completions", json=CHAT)).status_code for _ in range(20)]
        assert collector.arrived.wait(60)
        tracing.close()
    assert statuses == [200] * 20
    assert not collector.released.is_set() and collector.requests == []


@pytest.mark.parametrize("status", [None, 503, 400])
async def test_a_dead_or_refusing_collector_breaks_no_request(
    collector: Collector, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "END_S", 0.01)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    collector.status = status or 200
    url = collector.url if status else f"http://127.0.0.1:{free_port()}"
    tracing = to_collector(traces_url(url), "")
    async with client_of(tracing) as client:
        answers = [await client.post("/v1/chat/completions", json=CHAT) for _ in range(5)]
        if status:
            assert collector.arrived.wait(60)
    tracing.close()
    assert [answer.status_code for answer in answers] == [200] * 5
    assert all("Hello" in answer.text for answer in answers)
