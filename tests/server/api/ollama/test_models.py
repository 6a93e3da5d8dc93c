"""/api/tags, /api/show, /api/ps, /api/version, and the routes that would change models."""

from datetime import datetime
from typing import Any

import httpx
import pytest

from engine.client.engine import EngineState
from server.api.ollama.models import OllamaLoadedList, OllamaModelList, OllamaShown
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine

TAGGED = f"{NAME}:latest"


async def test_models_are_listed_with_their_tag(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/api/tags")).json()
    check_answer(OllamaModelList, listed)
    [model] = listed["models"]
    assert (model["name"], model["model"]) == (TAGGED, TAGGED)
    assert datetime.fromisoformat(model["modified_at"]).timestamp() == 1_700_000_000
    assert len(bytes.fromhex(model["digest"])) == 32
    assert model["details"] == {
        "parent_model": "",
        "format": "onnx",
        "family": "qwen3",
        "families": ["qwen3"],
        "parameter_size": "1.2K",
        "quantization_level": "int4",
    }


async def test_what_is_loaded(client: httpx.AsyncClient) -> None:
    loaded = (await client.get("/api/ps")).json()
    check_answer(OllamaLoadedList, loaded)
    [model] = loaded["models"]
    assert (model["name"], model["context_length"], model["size_vram"]) == (TAGGED, 100, 0)
    assert datetime.fromisoformat(model["expires_at"]).year == 9999


@pytest.mark.parametrize("body", [{"model": NAME}, {"model": TAGGED}, {"name": NAME}, {"name": TAGGED}])
async def test_a_model_is_shown(client: httpx.AsyncClient, engine: ScriptedEngine, body: dict[str, Any]) -> None:
    engine.think()
    shown = (await client.post("/api/show", json=body)).json()
    check_answer(OllamaShown, shown)
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["template"] == "{{ messages }}"
    assert shown["model_info"]["general.architecture"] == "qwen3"
    assert shown["model_info"]["qwen3.context_length"] == 100


async def test_a_model_that_is_not_there_is_not_shown(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/show", json={"model": "nobody"})
    assert (answer.status_code, list(answer.json())) == (404, ["error"])


async def test_nothing_is_listed_while_the_model_loads(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.state = EngineState.LOADING
    for path in ("/api/tags", "/api/ps"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (503, {"error": "The model is still loading."})


async def test_the_version_is_three_numbers(client: httpx.AsyncClient) -> None:
    version = (await client.get("/api/version")).json()["version"]
    assert tuple(map(int, version.split("."))) >= (0, 12, 11)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/pull"),
        ("POST", "/api/push"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("DELETE", "/api/delete"),
        ("POST", "/api/blobs/sha256:00"),
    ],
)
async def test_models_are_not_changed_over_http(client: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await client.request(method, path, json={"model": NAME})
    assert answer.status_code == 501
    assert "`hexserve pull`" in answer.json()["error"]


async def test_a_model_that_embeds_says_so(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.embed()
    assert (await client.post("/api/show", json={"model": NAME})).json()["capabilities"] == ["embedding"]
