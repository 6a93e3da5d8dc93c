"""The access log: its fields as text and as JSON, and the table of docs/reference/observability.md."""

import json
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.config import EngineConfig
from engine.request import RequestTimings, SamplingParams
from server.logs import FORMAT, CleanFormatter
from server.middleware.access_log import ACCESS_LOGGER, AccessRecord, json_line, text_line
from server.middleware.auth import read_keys
from server.observability.metrics import Launched, RequestFacts, SequenceEnd
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "observability.md").read_text(encoding="utf-8")
KEY = {"authorization": "Bearer sk-anna"}
SECRET = "xyzzy-of-the-prompt"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": SECRET}], "max_tokens": 9}
ROW = re.compile(r"^\| `(\w+)` \| ([a-z]+) \| .+ \|$", re.MULTILINE)


def documented() -> dict[str, str]:
    """Type by field, of the page's table."""
    return dict(ROW.findall(PAGE.split("## Access log")[1].split("\n## ")[0]))


def whole() -> AccessRecord:
    """A record that has everything."""
    first = RequestTimings(1.04, 20.0, 30.0, 7, 3, 4, drafted_tokens=7, accepted_tokens=5, preemptions=1)
    second = RequestTimings(2.0, 10.0, 40.0, 7, 3, 5, drafted_tokens=3, accepted_tokens=1)
    launched = Launched("chatcmpl-1", "demo", 2, 7, SamplingParams(9), 50.0)
    ends = [SequenceEnd("stop", first), SequenceEnd("length", second)]
    facts = RequestFacts(49.0, "/v1/chat/completions", 200, launched, 50.02, ends)
    asked = AccessRecord("POST", "/v1/chat/completions", "req_1", "2", facts)
    return replace(asked, at=1.5e9, status=200, milliseconds=71.26, key="anna", trace_id="ab" * 16)


def test_a_line_for_people() -> None:
    expected = "POST /v1/chat/completions 200 71.3ms req_1 key=anna guesses=6/10 retry=2 trace=" + "ab" * 16
    assert text_line(whole()) == expected
    left = AccessRecord("GET", "/x", "req_2", "", RequestFacts(), milliseconds=1.0, has_left=True)
    assert text_line(left) == "GET /x 0 1.0ms req_2 client left"


def test_one_object_of_json() -> None:
    assert json.loads(json_line(whole())) == {
        "time": "2017-07-14T02:40:00.000Z",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration_ms": 71.3,
        "request_id": "req_1",
        "client_left": False,
        "key": "anna",
        "retry": 2,
        "trace_id": "ab" * 16,
        "model": "demo",
        "id": "chatcmpl-1",
        "choices": 2,
        "prompt_tokens": 7,
        "finish_reasons": {"stop": 1, "length": 1},
        "first_token_ms": 20.0,
        "completion_tokens": 9,
        "cached_tokens": 6,
        "queue_ms": 2.0,
        "prefill_ms": 20.0,
        "decode_ms": 40.0,
        "preemptions": 1,
        "drafted_tokens": 10,
        "accepted_tokens": 6,
    }


def test_the_page_names_every_field_and_its_type() -> None:
    kinds = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object"}
    written = {name: kinds[type(value)] for name, value in json.loads(json_line(whole())).items()}
    assert documented() == written


@pytest.fixture
async def json_client() -> AsyncIterator[httpx.AsyncClient]:
    settings = Settings(EngineConfig("unused"), access_log="json")
    app = create_app(settings, ScriptedEngine(), read_keys("anna:sk-anna", ""))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def test_what_requests_write(json_client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        await json_client.post("/v1/chat/completions", json=CHAT | {"n": 2}, headers=KEY | {"x-request-id": "mine"})
        await json_client.post("/v1/chat/completions", json=CHAT | {"stream": True}, headers=KEY)
        await json_client.post("/v1/chat/completions", json=CHAT | {"n": -1}, headers=KEY)
        await json_client.get("/evil%0a%22%1b")
    lines = [
        CleanFormatter(FORMAT, ACCESS_LOGGER).format(each) for each in caplog.records if each.name == ACCESS_LOGGER
    ]
    assert SECRET not in "".join(lines) and "Hello" not in "".join(lines)
    chat, stream, refused, evil = (json.loads(line) for line in lines)
    assert (chat["request_id"], chat["key"], chat["status"], chat["model"]) == ("mine", "anna", 200, "scripted")
    assert (chat["choices"], chat["prompt_tokens"], chat["completion_tokens"]) == (2, 1, 10)
    assert chat["finish_reasons"] == {"stop": 2} and chat["prefill_ms"] == 20.0
    assert (stream["choices"], stream["finish_reasons"], stream["client_left"]) == (1, {"stop": 1}, False)
    assert stream["first_token_ms"] >= 0 and datetime.fromisoformat(stream["time"]).tzinfo is not None
    assert refused["status"] == 400 and "model" not in refused
    assert (evil["path"], evil["status"]) == ('/evil " ', 401) and "key" not in evil


def test_other_lines_keep_time_and_name() -> None:
    formatter = CleanFormatter(FORMAT, ACCESS_LOGGER)
    values: dict[str, Any] = {"msg": "%s", "args": ('{"a": "\x1b"}',), "levelname": "INFO"}
    assert formatter.format(logging.makeLogRecord(values | {"name": ACCESS_LOGGER})) == '{"a": " "}'
    assert formatter.format(logging.makeLogRecord(values | {"name": "hexserve"})).endswith(
        'INFO    hexserve: {"a": " "}'
    )
