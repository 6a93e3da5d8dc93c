"""Routes over several models: which one answers, what a request waits for, and what it holds until its answer ends."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import openai.types
import pytest
from fastapi import FastAPI

from engine.bundle.manifest import NpuSpec
from engine.bundle.specs import ModelTask
from engine.client.engine import EngineState
from engine.config import EngineConfig
from server.app import create_app
from server.http.in_flight import InFlight
from server.middleware.auth import KeyRing
from server.models.manager import ManagerRules
from server.settings import Settings
from tests.server.models.stage import Stage, settled
from tests.server.scripted_engine import manifest

HELLO = {"model": "b", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage(rules=ManagerRules(load_wait_s=30))
    yield made
    for loader in made.loaders:
        loader.may_start.set()
    await made.manager.close()


@pytest.fixture
async def app(stage: Stage) -> FastAPI:
    return create_app(Settings(EngineConfig("unused"), request_timeout_s=20), stage.manager, KeyRing())


async def until(stage: Stage, number: int, state: str) -> None:
    while stage.states[number] != state:
        await settled()


async def test_a_request_loads_the_model_that_it_names_and_no_other(client: httpx.AsyncClient, stage: Stage) -> None:
    for path, more in (
        ("/v1/chat/completions", {"messages": HELLO["messages"]}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
    ):
        answer = await client.post(path, json={"model": "b", **more})
        assert (answer.status_code, answer.json()["model"]) == (200, "b")
    assert stage.states == ["unloaded", "ready", "unloaded"]
    assert [len(loader.engines) for loader in stage.loaders] == [0, 1, 0]
    assert len(stage.loaders[1].engines[0].submitted) == 3


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", {"messages": HELLO["messages"]}),
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}),
        ("/v1/messages", {"messages": HELLO["messages"], "max_tokens": 5}),
        ("/v1/messages/count_tokens", {"messages": HELLO["messages"]}),
        ("/api/chat", {"messages": HELLO["messages"]}),
        ("/api/generate", {"prompt": "hello"}),
    ],
)
async def test_what_an_unloaded_embedder_cannot_do_is_refused_before_it_is_loaded(
    path: str, more: dict[str, Any], client: httpx.AsyncClient, stage: Stage
) -> None:
    stage.loaders[1].manifest = msgspec.structs.replace(manifest(), task=ModelTask.EMBED)
    answer = await client.post(path, json={"model": "b", **more})
    assert (answer.status_code, "embed" in answer.text) == (400, True), answer.text
    assert stage.states == ["unloaded"] * 3
    assert not stage.models[1].pins


async def test_a_model_that_generates_is_not_loaded_for_vectors(client: httpx.AsyncClient, stage: Stage) -> None:
    for path in ("/v1/embeddings", "/api/embed"):
        answer = await client.post(path, json={"model": "b", "input": "hello"})
        assert (answer.status_code, "does not make embeddings" in answer.text) == (400, True), answer.text
    assert stage.states == ["unloaded"] * 3


async def test_what_is_known_only_of_the_loaded_model_refuses_as_well(client: httpx.AsyncClient, stage: Stage) -> None:
    """A checkpoint that has not been compiled yet has no manifest."""
    stage.loaders[1].manifest = None
    answer = await client.post("/v1/embeddings", json={"model": "b", "input": "hello"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "model_not_supported")
    assert (stage.states[1], stage.models[1].pins) == ("ready", 0)


async def test_the_list_says_what_each_model_is_for(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.loaders[0].manifest = None
    stage.loaders[1].manifest = msgspec.structs.replace(manifest(), task=ModelTask.EMBED)
    listed = (await client.get("/v1/models")).json()["data"]
    assert [(model["meta"].get("task"), model["meta"].get("generates")) for model in listed] == [
        (None, None),
        ("embed", False),
        ("generate", True),
    ]
    assert [model["meta"].get("capabilities") for model in listed[:2]] == [None, ["embeddings"]]


async def test_the_document_has_the_refusal_to_unload(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/openapi.json")).json()["paths"]
    assert "409" in paths["/models/unload"]["post"]["responses"]


async def test_who_names_no_model_gets_the_first(client: httpx.AsyncClient, stage: Stage) -> None:
    assert (await client.post("/tokenize", json={"prompt": "a b"})).json()["count"] == 3
    assert (await client.post("/tokenize", json={"prompt": "a b", "model": "c"})).json()["count"] == 3
    assert (await client.get("/tokenizer_info")).status_code == 200
    assert stage.states == ["ready", "unloaded", "ready"]


async def test_the_tokenizer_of_the_model_that_is_named(client: httpx.AsyncClient, stage: Stage) -> None:
    assert (await client.get("/tokenizer_info", params={"model": "b"})).status_code == 200
    assert stage.states == ["unloaded", "ready", "unloaded"]
    unknown = await client.get("/tokenizer_info", params={"model": "d"})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")


async def test_an_unknown_model_is_the_404_of_today_with_all_names(client: httpx.AsyncClient, stage: Stage) -> None:
    for answer in (
        await client.post("/v1/chat/completions", json=HELLO | {"model": "d"}),
        await client.get("/v1/models/d"),
    ):
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
        assert answer.json()["error"]["message"] == "The model 'd' does not exist. This server has 'a', 'b', 'c'."
    assert stage.states == ["unloaded"] * 3


async def test_the_list_has_all_with_their_state(client: httpx.AsyncClient, stage: Stage) -> None:
    stage.loaders[2].manifest = None
    stage.loaders[0].is_broken = True
    await client.post("/v1/chat/completions", json=HELLO | {"model": "a"})
    await client.post("/v1/chat/completions", json=HELLO)
    models = (await client.get("/v1/models")).json()["data"]
    for model in models:
        openai.types.Model.model_validate(model, strict=True)
    assert [(model["id"], model["meta"]["state"]) for model in models] == [
        ("a", "failed"),
        ("b", "ready"),
        ("c", "unloaded"),
    ]
    assert models[0]["meta"]["error"] == "its manifest is damaged"
    assert (models[1]["meta"]["memory_bytes"], models[1]["max_model_len"]) == (40, 100)
    assert (models[2]["max_model_len"], models[2]["created"]) == (None, 0)
    assert (await client.get("/v1/models/b")).json() == models[1]


async def test_the_list_says_on_which_device_each_is(client: httpx.AsyncClient, stage: Stage) -> None:
    of_npu = msgspec.structs.replace(manifest(), npu=NpuSpec(60, 73, {}))
    stage.loaders[0].manifest = of_npu
    stage.models[1].settings = Settings(EngineConfig("unused", devices="the bundle for another"), model_name="b")
    listed = (await client.get("/v1/models")).json()["data"]
    assert [model["meta"].get("device") for model in listed] == ["NPU", None, "CPU"]
    await stage.use(1)
    assert (await client.get("/v1/models/b")).json()["meta"]["device"] == "CPU"  # as its workers say


async def test_a_model_is_pinned_until_the_last_chunk_was_sent(base_url: str, stage: Stage) -> None:
    await stage.use(1)
    stage.loaders[1].engines[0].hold(1)
    async with (
        httpx.AsyncClient(base_url=base_url) as client,
        client.stream("POST", "/v1/chat/completions", json=HELLO | {"stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        await anext(lines)
        assert stage.models[1].pins == 1
        refused = await client.post("/models/unload", json={"model": "b"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "model_busy")
        stage.loaders[1].engines[0].release(100)
        assert [line async for line in lines][-2:] == ["data: [DONE]", ""]
    while stage.models[1].pins:
        await settled()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_lets_go_of_the_model(base_url: str, stage: Stage, stream: bool) -> None:
    await stage.use(1)
    engine = stage.loaders[1].engines[0]
    engine.hold(0)
    async with httpx.AsyncClient(base_url=base_url) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=HELLO | {"stream": stream}))
        await engine.submit_seen.wait()
        assert stage.models[1].pins == 1
        asking.cancel()
        await asyncio.wait([asking])
    async with asyncio.timeout(10):
        await engine.abort_seen.wait()
        while stage.models[1].pins:
            await settled()


async def test_a_client_that_leaves_while_its_model_loads_lets_go_of_it(base_url: str, stage: Stage) -> None:
    stage.loaders[1].may_start.clear()
    async with httpx.AsyncClient(base_url=base_url) as client:
        asking = asyncio.create_task(client.post("/v1/chat/completions", json=HELLO))
        await stage.loaders[1].starting.wait()
        assert stage.models[1].pins == 1
        asking.cancel()
        await asyncio.wait([asking])
        async with asyncio.timeout(10):
            while stage.models[1].pins:
                await settled()


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": HELLO["messages"], "temperature": 9}])
async def test_a_refused_request_lets_go_of_the_model(
    client: httpx.AsyncClient, stage: Stage, body: dict[str, object]
) -> None:
    assert (await client.post("/v1/chat/completions", json={"model": "b", **body})).status_code == 400
    assert stage.models[1].pins == 0


async def test_the_wait_for_a_model_counts_as_life_of_the_request(stage: Stage) -> None:
    app = create_app(Settings(EngineConfig("unused"), request_timeout_s=0.01), stage.manager, KeyRing())
    stage.loaders[1].may_start.clear()
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        answer = await client.post("/v1/chat/completions", json=HELLO)
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
    assert stage.models[1].pins == 0


async def test_a_draining_server_loads_nothing(stage: Stage) -> None:
    in_flight = InFlight()
    app = create_app(Settings(EngineConfig("unused")), stage.manager, KeyRing(), in_flight)
    in_flight.draining = True
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        answer = await client.post("/v1/chat/completions", json=HELLO)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
        assert (await client.get("/health/ready")).json() == {"status": "unavailable", "state": "draining"}
    assert stage.states == ["unloaded"] * 3


async def test_it_is_ready_before_a_model_is_loaded_and_while_one_is_dead(
    client: httpx.AsyncClient, stage: Stage
) -> None:
    paths = ("/health", "/health/live", "/health/ready")
    assert [(await client.get(path)).json() for path in paths] == [{"status": "ok", "state": "ready"}] * 3
    await stage.use(0)
    stage.loaders[0].engines[0].state = EngineState.DEAD
    answers = [await client.get(path) for path in paths]
    assert [answer.json() for answer in answers] == [{"status": "ok", "state": "ready", "device": "CPU"}] * 3


async def test_told_to_load_and_to_unload(client: httpx.AsyncClient, stage: Stage) -> None:
    loaded = await client.post("/models/load", json={"model": "c"})
    assert loaded.json() == {"success": True, "model": "c", "state": "ready"}
    assert stage.states == ["unloaded", "unloaded", "ready"]
    unloaded = await client.post("/models/unload", json={"model": "c"})
    assert unloaded.json() == {"success": True, "model": "c", "state": "unloaded"}
    assert stage.states == ["unloaded"] * 3
    for path in ("/models/load", "/models/unload"):
        assert (await client.post(path, json={"model": "d"})).status_code == 404
        assert (await client.post(path, json={})).status_code == 400


async def test_metrics_have_a_sample_of_each_model_under_one_head(client: httpx.AsyncClient, stage: Stage) -> None:
    await stage.use(0, 1)
    await stage.manager.unload(stage.models[0])
    text = (await client.get("/metrics")).text
    assert text.count("# TYPE hexserve:steps_total counter") == 1
    for line in (
        'hexserve:ready{state="ready"} 1.0',
        'hexserve:steps_total{model_name="a"} 7.0',
        'hexserve:steps_total{model_name="b"} 7.0',
        'hexserve:steps_total{model_name="c"} 0.0',
        'hexserve:model_state{model_name="a",state="unloaded"} 1.0',
        'hexserve:model_state{model_name="b",state="ready"} 1.0',
        'hexserve:model_state{model_name="b",state="failed"} 0.0',
        'hexserve:model_loads_total{model_name="a"} 1.0',
        'hexserve:model_unloads_total{model_name="a"} 1.0',
        'hexserve:model_memory_bytes{model_name="b"} 40.0',
        'hexserve:model_requests{model_name="b"} 0.0',
        'hexserve:device_info{device="CPU",fingerprint="hexserve-test-00000000",model_name="b"} 1.0',
    ):
        assert line in text.splitlines()
    assert 'hexserve:device_info{device="CPU",fingerprint="hexserve-test-00000000",model_name="a"}' not in text


async def test_work_that_outlives_its_request_can_keep_the_model(stage: Stage) -> None:
    await stage.use(0)
    with stage.models[0].pinned():
        with stage.models[0].pinned():
            assert stage.models[0].pins == 2
        assert stage.models[0].pins == 1
