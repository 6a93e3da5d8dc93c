"""GET /v1/steps over a real uvicorn: what is told, when the worker is told to record, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest
from fastapi import FastAPI

import server.app
from engine.client.engine import EngineState
from engine.client.step_feed import KEPT_RECORDS, MOST_WATCHERS
from engine.config import EngineConfig
from engine.messages import StepRecord, StepSegment
from server.middleware.auth import KeyRing, read_keys
from server.settings import Settings
from tests.server.models.stage import Stage
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine
from tests.server.served import served

PATIENCE_S = 10.0
SEGMENTS = (StepSegment(7, "prefill", 5, 0, 0, 0), StepSegment(3, "decode", 2, 1, 1, 2))


def record(number: int) -> StepRecord:
    return StepRecord(number, 10.5, 2.25, 3.5, 8, 128, SEGMENTS, 2, 1, 32, 64)


class Events:
    """The events of one stream, one after the other."""

    def __init__(self, answer: httpx.Response) -> None:
        self._lines = answer.aiter_lines()

    async def next(self) -> Any:
        """The data of the next event."""
        async with asyncio.timeout(PATIENCE_S):
            async for line in self._lines:
                if line.startswith("data: "):
                    text = line.removeprefix("data: ")
                    return text if text == "[DONE]" else json.loads(text)
        raise AssertionError("the stream has ended")


@pytest.fixture
async def browser(base_url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=base_url, timeout=PATIENCE_S) as client:
        yield client


async def until(engine: ScriptedEngine, watched: list[bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while engine.watched != watched:
            await asyncio.sleep(0)


async def test_steps_arrive_and_the_worker_records_only_meanwhile(
    app: FastAPI, engine: ScriptedEngine, browser: httpx.AsyncClient
) -> None:
    content = app.state.document.read()["paths"]["/v1/steps"]["get"]["responses"]["200"]["content"]
    schema = content["text/event-stream"]["x-event-schema"]
    checker = jsonschema.Draft202012Validator({**schema, "components": app.state.document.read()["components"]})
    assert engine.watched == []
    async with browser.stream("GET", "/v1/steps") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = Events(answer)
        first = await events.next()
        assert (first["steps"], first["dropped"]) == ([], 0)
        assert [first[name] for name in ("running", "waiting", "kv_slots_used", "kv_slots_total")] == [3, 0, 32, 64]
        assert engine.watched == [True]
        engine.stats = msgspec.structs.replace(engine.stats, running=9, waiting=4, kv_slots_used=48)
        engine.steps.give(record(1))
        second = await events.next()
        checker.validate(first)
        checker.validate(second)
    (told,) = second["steps"]
    assert (told["number"], told["run_ms"], told["rows"], told["context"]) == (1, 2.25, 8, 128)
    assert told["segments"][1] == {
        "sequence": 3,
        "kind": "decode",
        "rows": 2,
        "guesses": 1,
        "accepted": 1,
        "tokens": 2,
    }
    assert (told["running"], told["waiting"], told["kv_slots_used"]) == (2, 1, 32)  # of one device
    assert [second[name] for name in ("running", "waiting", "kv_slots_used", "kv_slots_total")] == [9, 4, 48, 64]
    await until(engine, [True, False])


async def test_steps_that_come_together_are_one_event_and_lost_ones_are_counted(
    engine: ScriptedEngine, browser: httpx.AsyncClient
) -> None:
    async with browser.stream("GET", "/v1/steps") as answer:
        events = Events(answer)
        await events.next()
        for number in range(KEPT_RECORDS + 5):
            engine.steps.give(record(number))
        told = await events.next()
    assert (len(told["steps"]), told["steps"][0]["number"], told["dropped"]) == (KEPT_RECORDS, 5, 5)


async def test_the_end_of_the_engine_ends_the_stream(engine: ScriptedEngine, browser: httpx.AsyncClient) -> None:
    async with browser.stream("GET", "/v1/steps") as answer:
        events = Events(answer)
        await events.next()
        engine.steps.close()
        assert await events.next() == "[DONE]"
    refused = await browser.get("/v1/steps")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")


async def test_another_model_is_refused(engine: ScriptedEngine, browser: httpx.AsyncClient) -> None:
    refused = await browser.get("/v1/steps", params={"model": "other"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    async with browser.stream("GET", "/v1/steps", params={"model": NAME}) as answer:
        assert answer.status_code == 200
    engine.state = EngineState.LOADING
    assert (await browser.get("/v1/steps", params={"model": NAME})).status_code == 503


async def test_only_so_many_may_watch(engine: ScriptedEngine, browser: httpx.AsyncClient) -> None:
    for _ in range(MOST_WATCHERS):
        engine.steps.open()
    refused = await browser.get("/v1/steps")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


async def test_it_wants_a_key_like_everything(engine: ScriptedEngine) -> None:
    app = create_app(Settings(EngineConfig("unused")), engine, read_keys("anna:sk-anna", ""))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        assert (await client.get("/v1/steps")).status_code == 401
    assert engine.watched == []


def test_a_head_is_answered_and_watches_nothing() -> None:
    with served() as server:
        answer = httpx.head(f"{server.url}/v1/steps", timeout=PATIENCE_S)
        assert answer.status_code == 200
        again = httpx.get(f"{server.url}/health", timeout=PATIENCE_S)
        assert again.status_code == 200
        while server.engine.watched != [True, False]:
            assert httpx.get(f"{server.url}/health", timeout=PATIENCE_S).status_code == 200


async def test_watching_loads_no_model_and_keeps_none_loaded() -> None:
    stage = Stage(2)
    app = server.app.create_app(Settings(EngineConfig("unused")), stage.manager, KeyRing())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        for model in ("a", "b"):
            answer = await client.get("/v1/steps", params={"model": model})
            assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")
        assert stage.states == ["unloaded", "unloaded"]
        await stage.use(0)
        (engine,) = stage.loaders[0].engines
        watching = asyncio.create_task(client.get("/v1/steps", params={"model": "a"}))
        async with asyncio.timeout(PATIENCE_S):
            while not engine.watched:
                await asyncio.sleep(0)
        assert stage.models[0].pins == 0
        engine.steps.close()  # as every engine does when it is closed
        assert (await watching).text.endswith("data: [DONE]\n\n")
    await stage.manager.close()
