"""Errors of Anthropic's paths: whoever refuses, the body is Anthropic's and names the field."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from engine.errors import Busy, BusyReason, StepFailed
from server.middleware.auth import read_keys
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine

PATHS = ("/v1/messages", "/v1/messages/count_tokens")
USER = {"role": "user", "content": "hi"}
HELLO: dict[str, Any] = {"model": NAME, "max_tokens": 20, "messages": [USER]}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def error_of(answer: httpx.Response, status: int, kind: str) -> str:
    """The message of an error, whose body and headers are checked."""
    assert answer.status_code == status, answer.text
    body = answer.json()
    assert body == {
        "type": "error",
        "error": {"type": kind, "message": body["error"]["message"]},
        "request_id": answer.headers["request-id"],
    }
    return str(body["error"]["message"])


def user(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [USER, {"role": "assistant", "content": "I"}]}, "messages"),
    ({"messages": user(IMAGE)}, "image"),
    ({"messages": user({"type": "document", "source": {}})}, "document"),
    ({"messages": user({"type": "search_result"})}, "search_result"),
    ({"messages": user({"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]})}, "image"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": ""}]}]},
        "redacted_thinking",
    ),
    ({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "server_tool_use"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, "code_execution_20250825"),
    ({"tools": [TOOL | {"input_examples": [{}]}]}, "tools[0].input_examples"),
    ({"mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}]}, "mcp_servers"),
    (
        {"messages": user({"type": "text", "text": "a", "cache_control": {"type": "x"}})},
        "[0].cache_control.type",
    ),
    ({"container": "c"}, "container"),
    ({"speed": "fast"}, "speed"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "clear_tool_uses_20250919"),
    ({"thinking": {"type": "between_tools"}}, "between_tools"),
    ({"thinking": {"type": "enabled", "budget_tokens": 20}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "'thinking' is not supported"),
    ({"tool_choice": {"type": "any"}}, "'tool_choice' is only allowed when 'tools' are given"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "'g' is not among the 'tools'"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"n": 2}, "Unknown parameter: 'n'"),
]


@pytest.mark.parametrize(("fields", "named"), REFUSED, ids=[named for _, named in REFUSED])
async def test_what_is_not_honoured_is_refused_by_name(
    client: httpx.AsyncClient, fields: dict[str, Any], named: str
) -> None:
    answer = await client.post(PATHS[0], json=HELLO | fields)
    assert named in error_of(answer, 400, "invalid_request_error")


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_that_is_not_there(client: httpx.AsyncClient, path: str) -> None:
    body = {key: value for key, value in HELLO.items() if key == "messages" or path == PATHS[0]} | {"model": "claude"}
    assert "'claude'" in error_of(await client.post(path, json=body), 404, "not_found_error")


@pytest.mark.parametrize("path", PATHS)
async def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(client: httpx.AsyncClient, path: str) -> None:
    """Clients look for this sentence to know that they must shorten the conversation."""
    body: dict[str, Any] = {"model": NAME, "messages": [{"role": "user", "content": "word " * 120}]}
    answer = await client.post(path, json=body | ({"max_tokens": 5} if path == PATHS[0] else {}))
    assert error_of(answer, 400, "invalid_request_error") == "prompt is too long: 120 tokens > 99 maximum"


async def test_threads_are_refused_with_the_code_at_which_sdks_go_on_without(client: httpx.AsyncClient) -> None:
    answer = await client.post(PATHS[0], json=HELLO | {"thread": {"type": "create"}})
    assert answer.status_code == 400
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


async def test_paths_and_methods(client: httpx.AsyncClient) -> None:
    error_of(await client.get("/v1/messages"), 405, "invalid_request_error")
    error_of(await client.post("/v1/messages/batches", json={}), 404, "not_found_error")
    asked = {"anthropic-version": "2023-06-01"}
    error_of(await client.get("/v1/models/other", headers=asked), 404, "not_found_error")
    assert "code" in (await client.get("/v1/models/other")).json()["error"]  # OpenAI's


async def test_bodies_that_are_not_read(client: httpx.AsyncClient) -> None:
    json = {"content-type": "application/json"}
    error_of(await client.post(PATHS[0], content=b"x" * 65 * 1024, headers=json), 413, "request_too_large")
    error_of(await client.post(PATHS[0], content=b"{}"), 415, "invalid_request_error")
    error_of(await client.post(PATHS[0], content=b"{", headers=json), 400, "invalid_request_error")


async def test_a_full_server_is_overloaded(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.refusal = Busy("The server is full.", BusyReason.REQUESTS, 7.2)
    answer = await client.post(PATHS[0], json=HELLO)
    assert error_of(answer, 529, "overloaded_error") == "The server is full."
    assert answer.headers["retry-after"] == "8"


async def test_a_broken_engine(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.refusal = StepFailed("the graph broke")
    assert error_of(await client.post(PATHS[0], json=HELLO), 500, "api_error") == "the graph broke"


@pytest.fixture
async def guarded(engine: ScriptedEngine, settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    limited = Settings(settings.engine, requests_per_minute=2)
    app = create_app(limited, engine, read_keys("anna:sk-anna", ""))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        yield client


async def test_what_the_guard_refuses(guarded: httpx.AsyncClient) -> None:
    error_of(await guarded.post(PATHS[0], json=HELLO), 401, "authentication_error")
    wrong = {"x-api-key": "sk-ben"}
    error_of(await guarded.post(PATHS[0], json=HELLO, headers=wrong), 401, "authentication_error")
    for headers in ({"x-api-key": "sk-anna"}, {"authorization": "Bearer sk-anna"}):
        assert (await guarded.post(PATHS[0], json=HELLO, headers=headers)).status_code == 200
    denied = await guarded.post(PATHS[0], json=HELLO, headers={"x-api-key": "sk-anna"})
    error_of(denied, 429, "rate_limit_error")
    assert int(denied.headers["retry-after"]) > 0


async def test_an_error_of_our_own(
    client: httpx.AsyncClient, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(requests: int) -> None:
        raise ZeroDivisionError(requests)

    monkeypatch.setattr(engine, "check_room", broken)
    assert "had an error" in error_of(await client.post(PATHS[0], json=HELLO), 500, "api_error")
