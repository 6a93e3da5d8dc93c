"""The routes under /api over several models: which one answers, how long it stays, and what is said of it meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from engine.config import EngineConfig
from server.app import create_app
from server.middleware.auth import KeyRing
from server.models.manager import ManagerRules
from server.settings import Settings
from tests.server.models.stage import Stage, settled

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "stream": False}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage(rules=ManagerRules(idle_s=600.0), clock=asyncio.get_running_loop().time)
    yield made
    await made.manager.close()


@pytest.fixture
async def app(stage: Stage) -> FastAPI:
    return create_app(Settings(EngineConfig("unused")), stage.manager, KeyRing())


async def asked(client: httpx.AsyncClient, model: str, path: str = "/api/chat", **fields: Any) -> Any:
    answer = await client.post(path, json={"model": model, **(HELLO if path == "/api/chat" else {}), **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def until_unloaded(stage: Stage, number: int) -> None:
    async with asyncio.timeout(10):
        while stage.states[number] != "unloaded":
            await asyncio.sleep(0)


async def expiries(client: httpx.AsyncClient) -> dict[str, float]:
    """Seconds until each loaded model is unloaded."""
    now = datetime.now(UTC)
    models = (await client.get("/api/ps")).json()["models"]
    return {model["name"]: (datetime.fromisoformat(model["expires_at"]) - now).total_seconds() for model in models}


async def test_a_tagged_name_loads_its_model_and_no_other(client: httpx.AsyncClient, stage: Stage) -> None:
    assert (await asked(client, "b:latest"))["model"] == "b:latest"
    assert stage.states == ["unloaded", "ready", "unloaded"]
    assert (await client.post("/api/chat", json=HELLO | {"model": "d"})).status_code == 404


async def test_all_are_listed_and_the_loaded_ones_run(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.loaders[2].manifest = None
    await asked(client, "a")
    listed = (await client.get("/api/tags")).json()["models"]
    assert [model["name"] for model in listed] == ["a:latest", "b:latest", "c:latest"]
    assert [model["details"]["family"] for model in listed] == ["qwen3", "qwen3", ""]
    [loaded] = (await client.get("/api/ps")).json()["models"]
    assert (loaded["name"], loaded["size"]) == ("a:latest", 40)


async def test_what_is_not_loaded_is_shown_without_being_loaded(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.loaders[2].manifest = None
    shown = [(await client.post("/api/show", json={"model": name})).json() for name in ("b", "c:latest")]
    assert [one["model_info"].get("qwen3.context_length") for one in shown] == [100, None]
    assert [one["capabilities"] for one in shown] == [["completion", "tools"], ["completion"]]
    assert stage.states == ["unloaded"] * 3


async def test_without_a_prompt_a_model_is_loaded(client: httpx.AsyncClient, stage: Stage) -> None:
    assert (await asked(client, "b", "/api/generate"))["done_reason"] == "load"
    assert stage.states == ["unloaded", "ready", "unloaded"]


async def test_keep_alive_says_how_long_a_model_stays(client: httpx.AsyncClient) -> None:
    await asked(client, "a", keep_alive="5m")
    await asked(client, "b", keep_alive=-1)
    await asked(client, "c")
    left = await expiries(client)
    assert 290 < left["a:latest"] < 301
    assert left["b:latest"] > 1e9
    assert 590 < left["c:latest"] < 601
    await asked(client, "a")
    assert (await expiries(client))["a:latest"] > 590


async def test_keep_alive_zero_unloads_behind_the_answer(client: httpx.AsyncClient, stage: Stage) -> None:
    await asked(client, "a")
    assert (await asked(client, "b", keep_alive=0))["message"]["content"] == "Hello there, friend!"
    await until_unloaded(stage, 1)
    assert stage.states == ["ready", "unloaded", "unloaded"]
    await client.post("/v1/chat/completions", json=HELLO | {"model": "b"})
    await settled()
    assert stage.states[1] == "ready"


@pytest.mark.parametrize(("path", "nothing"), [("/api/chat", {"messages": []}), ("/api/generate", {"prompt": ""})])
async def test_a_model_is_told_to_go(
    client: httpx.AsyncClient, stage: Stage, path: str, nothing: dict[str, Any]
) -> None:
    await asked(client, "a")
    for _ in range(2):
        answer = await asked(client, "a:latest", path, keep_alive=0, **nothing)
        assert (answer["model"], answer["done"], answer["done_reason"]) == ("a:latest", True, "unload")
        assert stage.states[0] == "unloaded"


async def test_a_model_in_use_goes_when_its_requests_have_ended(base_url: str, stage: Stage) -> None:
    await stage.use(0)
    engine = stage.loaders[0].engines[0]
    engine.hold(1)
    async with httpx.AsyncClient(base_url=base_url) as client:
        async with client.stream("POST", "/api/chat", json=HELLO | {"model": "a", "stream": True}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            assert (await asked(client, "a", "/api/generate", keep_alive=0))["done_reason"] == "unload"
            assert stage.states[0] == "ready"
            engine.release(100)
            assert '"done":true' in [line async for line in lines][-1]
        await until_unloaded(stage, 0)


async def test_how_long_loading_took_is_in_the_answer(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.loaders[0].may_start.clear()
    asking = asyncio.create_task(asked(client, "a"))
    await stage.loaders[0].starting.wait()
    stage.loaders[0].may_start.set()
    answer = await asking
    assert 0 < answer["load_duration"] <= answer["total_duration"]
