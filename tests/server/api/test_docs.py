"""The document and its page: whole, true, and in need of no network."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import jsonschema
import pytest
from fastapi import FastAPI

from engine.config import EngineConfig
from server.api.documents import page
from server.middleware.auth import KeyRing, read_keys
from server.middleware.checks import OPEN_PATHS
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine

HELLO: Any = {"model": NAME, "messages": [{"role": "user", "content": "hello"}], "logprobs": True}
ADDRESSES = ("src", "href", "action", "data", "srcset", "poster")


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from [inner] if key == "$ref" else references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def keyed(engine: ScriptedEngine) -> FastAPI:
    return create_app(Settings(EngineConfig("unused")), engine, read_keys("anna:sk-anna", ""))


async def test_every_route_is_in_it(app: FastAPI) -> None:
    document = app.state.document.read()
    served = {(path, "get") for path in ("/health", "/metrics", "/docs", "/openapi.json", "/tokenizer_info")}
    asked = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize")
    served |= {(path, "post") for path in asked}
    assert served <= {(path, method) for path, operations in document["paths"].items() for method in operations}
    named = {reference.removeprefix("#/components/schemas/") for reference in references(document)}
    assert named == set(document["components"]["schemas"])


async def test_every_operation_says_how_it_fails(engine: ScriptedEngine) -> None:
    document = keyed(engine).state.document.read()
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            statuses = set(operation["responses"])
            assert {"200", "403", "431", "500"} <= statuses
            assert "422" not in statuses
            assert ("401" in statuses) == bool(operation["security"]) == (path not in OPEN_PATHS)
            assert ("429" in statuses) == (method == "post")
            assert all("x-request-id" in response["headers"] for response in operation["responses"].values())


async def test_without_keys_it_asks_for_none(app: FastAPI) -> None:
    assert "securitySchemes" not in app.state.document.read()["components"]
    assert not any(
        "security" in o for operations in app.state.document.read()["paths"].values() for o in operations.values()
    )


async def test_answers_and_events_are_what_it_says(app: FastAPI, client: httpx.AsyncClient) -> None:
    document = app.state.document.read()
    content = document["paths"]["/v1/chat/completions"]["post"]["responses"]["200"]["content"]

    def check(value: object, schema: dict[str, Any]) -> None:
        jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)

    whole = await client.post("/v1/chat/completions", json=HELLO)
    check(whole.json(), content["application/json"]["schema"])
    stream = await client.post(
        "/v1/chat/completions", json=HELLO | {"stream": True, "stream_options": {"include_usage": True}}
    )
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    assert len(events) > 5
    for event in events:
        check(event, content["text/event-stream"]["x-event-schema"])
    refused = await client.post("/v1/chat/completions", json={})
    check(refused.json(), {"$ref": "#/components/schemas/ErrorBody"})


class Addresses(HTMLParser):
    """Collects tags and whatever a page would load or lead to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.found: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.found |= {value or "" for name, value in attrs if name in ADDRESSES}


async def test_the_page_needs_no_network(app: FastAPI, client: httpx.AsyncClient) -> None:
    answer = await client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    reader = Addresses()
    reader.feed(answer.text)
    assert not reader.tags & {"script", "link", "img", "iframe", "object"}
    assert all(address.startswith("#") or address == "openapi.json" for address in reader.found)
    assert not re.search(r"@import|url\(|//[a-z]", answer.text)
    for path in app.state.document.read()["paths"]:
        assert path in answer.text
    for name in app.state.document.read()["components"]["schemas"]:
        assert f'id="{name}"' in answer.text


def test_the_page_escapes_everything() -> None:
    evil = "<script>alert(1)</script>\"'"
    schema = {
        "description": evil,
        "properties": {evil: {"enum": [evil]}, "a": {"$ref": f"#/components/schemas/{evil}"}},
    }
    operation = {"description": evil, "responses": {evil: {"description": evil, "content": {evil: {"schema": schema}}}}}
    document = {
        "info": {"title": evil, "version": evil},
        "paths": {evil: {evil: operation}},
        "components": {"schemas": {evil: schema}},
    }
    assert "<script" not in page(document)
    assert "alert(1)" in page(document)


@pytest.mark.parametrize("path", ["/docs", "/openapi.json"])
async def test_it_can_be_turned_off(engine: ScriptedEngine, path: str) -> None:
    transport = httpx.ASGITransport(create_app(Settings(EngineConfig("unused"), page=False), engine, KeyRing()))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        assert (await client.get(path)).status_code == 404
