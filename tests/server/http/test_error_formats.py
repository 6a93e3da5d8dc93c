"""The body of an error is that of its path, also where no route was reached."""

from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from engine.config import EngineConfig
from server.http.errors import OllamaError, WireError, error_format
from server.middleware.auth import KeyRing, read_keys
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine

OPENAI_KEYS = {"message", "type", "param", "code"}


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions", "/api", "/apis/x", "/v1/api/chat"])
def test_openais_format_is_everywhere_else(path: str) -> None:
    assert set(msgspec.to_builtins(error_format(path).body(WireError(400, "wrong")))["error"]) == OPENAI_KEYS


def test_ollamas_is_below_api() -> None:
    assert error_format("/api/chat").body(WireError(400, "wrong", param="x")) == OllamaError("wrong")


async def answered(app: FastAPI, method: str, path: str, **given: Any) -> tuple[int, Any]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        answer = await client.request(method, path, **given)
        return answer.status_code, answer.json()


@pytest.mark.parametrize(
    ("method", "given", "status"),
    [
        ("POST", {"json": {}}, 400),
        ("POST", {"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ("POST", {"content": b"{}", "headers": {"content-type": "text/plain", "origin": "http://a.example"}}, 415),
        ("GET", {}, 405),
        ("POST", {"json": {}, "headers": {"host": "elsewhere.example"}}, 403),
        ("POST", {"json": {}, "headers": {"x-long": "a" * 100_000}}, 431),
    ],
)
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions"])
async def test_whoever_refuses_writes_the_format_of_the_path(
    engine: ScriptedEngine, path: str, method: str, given: dict[str, Any], status: int
) -> None:
    app = create_app(Settings(EngineConfig("unused"), allowed_hosts="server"), engine, KeyRing())
    found, body = await answered(app, method, path, **given)
    assert found == status
    assert isinstance(body["error"], str) is (path == "/api/chat")


async def test_keys_and_rates_too(engine: ScriptedEngine) -> None:
    settings = Settings(EngineConfig("unused"), requests_per_minute=1)
    app = create_app(settings, engine, read_keys("me:secret", ""))
    assert (await answered(app, "GET", "/api/tags"))[0] == 401
    key = {"Authorization": "Bearer secret"}
    assert (await answered(app, "POST", "/api/show", json={"model": "scripted"}, headers=key))[0] == 200
    status, body = await answered(app, "POST", "/api/show", json={"model": "scripted"}, headers=key)
    assert (status, type(body["error"])) == (429, str)
    assert isinstance((await answered(app, "GET", "/api/nowhere"))[1]["error"], str)


async def test_what_nobody_caught_too(engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    app = create_app(Settings(EngineConfig("unused")), engine, KeyRing())

    def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("server.api.ollama.models.tagged", broken)
    status, body = await answered(app, "GET", "/api/tags")
    assert (status, type(body["error"])) == (500, str)
