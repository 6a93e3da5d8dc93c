"""Adapters as models of their own: the list, the requests, the names in metrics."""

import dataclasses

import httpx
import msgspec
import pytest
from openai.types import Model

from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine

ADAPTERS = {"french": "00", "org/poet": "01"}


@pytest.fixture
async def engine(engine: ScriptedEngine) -> ScriptedEngine:
    ready = msgspec.structs.replace(engine._info.ready, adapters=ADAPTERS)
    engine._info = dataclasses.replace(engine._info, ready=ready)
    return engine


async def test_the_list_has_the_model_first_and_then_its_adapters(client: httpx.AsyncClient) -> None:
    models = (await client.get("/v1/models")).json()["data"]
    for model in models:
        check_answer(Model, model)
    assert [(model["id"], model["parent"], model["root"]) for model in models] == [
        (NAME, None, NAME),
        ("french", NAME, "french"),
        ("org/poet", NAME, "org/poet"),
    ]
    assert (await client.get("/v1/models/org/poet")).json() == models[2]


@pytest.mark.parametrize("name", [NAME, "french", "org/poet"])
async def test_a_request_takes_the_adapter_it_names(
    client: httpx.AsyncClient, engine: ScriptedEngine, name: str
) -> None:
    adapter = "" if name == NAME else name
    bodies: dict[str, dict[str, object]] = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "n": 2},
        "/v1/completions": {"prompt": ["hello", "there"]},
        "/v1/responses": {"input": "hello"},
    }
    for path, body in bodies.items():
        answer = await client.post(path, json=body | {"model": name})
        assert (answer.status_code, answer.json()["model"]) == (200, name)
    assert [request.adapter for request, *_ in engine.submitted] == [adapter] * 5
    text = (await client.get("/metrics")).text
    assert f'vllm:request_success_total{{finished_reason="stop",model_name="{name}"}} 5.0' in text


async def test_an_unknown_name_is_told_all_that_there_are(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"model": "german", "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert answer.json()["error"]["message"].endswith(f"This server has '{NAME}', 'french', 'org/poet'.")
    assert (await client.get("/v1/models/german")).status_code == 404
