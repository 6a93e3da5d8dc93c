"""Errors as they go out: whatever is wrong has words, a path that exists, and bounded length."""

from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from engine.errors import Busy, BusyReason, CompileError, ContextLengthExceeded, InvalidRequest, StepFailed, WorkerDied
from server.api.openai.completions import CompletionRequest
from server.generation.chat_request import ChatRequest, GenerationBody
from server.http.errors import RequestTimeout, bounded, dotted, echo, from_engine, from_validation, openai_body
from tests.server.scripted_engine import NAME

SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


def fields(model: type[GenerationBody]) -> st.SearchStrategy[dict[str, Any]]:
    names = st.sampled_from(sorted(model.model_fields)) | st.text(max_size=10)
    return st.dictionaries(names, JSON, max_size=6)


MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "tool", "assistant", "developer", "function"])},
    optional={
        "content": JSON | st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"])}), max_size=2),
        "tool_calls": JSON,
        "tool_call_id": JSON,
        "x": JSON,
    },
)


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_every_wrong_body_is_described(model: type[GenerationBody], data: st.DataObject) -> None:
    body = data.draw(fields(model))
    if data.draw(st.booleans()):
        body["messages" if model is ChatRequest else "prompt"] = data.draw(st.lists(MESSAGE | JSON, max_size=3))
    try:
        model.model_validate(body)
    except ValidationError as failure:
        error = from_validation(failure.errors(), body)
        assert error.status == 400
        assert error.code
        assert error.param
        assert 0 < len(error.message) <= 1000
        msgspec.json.encode(openai_body(error))


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidRequest("wrong", "x.y", "invalid_value"), 400, "invalid_request_error", "invalid_value"),
        (ContextLengthExceeded(10, 8, 5), 400, "invalid_request_error", "context_length_exceeded"),
        (Busy("full", BusyReason.REQUESTS, 0.2), 503, "server_error", None),
        (RequestTimeout("slow"), 504, "server_error", "timeout"),
        (WorkerDied("died"), 500, "server_error", None),
        (StepFailed("failed"), 500, "server_error", None),
        (CompileError("never here"), 500, "server_error", None),
    ],
)
def test_what_the_engine_reports(error: Any, status: int, kind: str, code: str | None) -> None:
    wire = from_engine(error)
    assert (wire.status, wire.type, wire.code) == (status, kind, code)
    assert wire.param == getattr(error, "param", None)


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (7.2, "8"), (1e9, "60"), (float("inf"), "60")])
def test_retry_after_is_what_old_sdks_obey(seconds: float, header: str) -> None:
    assert dict(from_engine(Busy("full", BusyReason.REQUESTS, seconds)).headers)["Retry-After"] == header


def test_the_overflow_sentence_names_the_numbers() -> None:
    message = from_engine(ContextLengthExceeded(4096, 4000, 200)).message
    assert message == (
        "This model's maximum context length is 4096 tokens. However, you requested 4200 tokens (4000 in the messages, "
        "200 in the completion). Please reduce the length of the messages or completion."
    )


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at 0x7f00dead in /usr/lib/python3/x.py", "at … in …"),
        (r"cannot open C:\models\secret\model.bin now", "cannot open … now"),
        ("rate is 5 tokens/s", "rate is 5 tokens/s"),
        ("line\r\n\x1b[0mend\u2028x", "line [0mend x"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
    ],
)
def test_what_is_ours_stays_ours(text: str, clean: str) -> None:
    assert from_engine(StepFailed(text)).message == clean


def test_lengths_are_bounded() -> None:
    assert len(bounded("x" * 10_000)) == 1000
    assert len(echo("x" * 10_000)) <= 200
    assert echo(10**5000) == "a huge integer"
    assert echo({"a": 1}) == "dict"


def test_a_dotted_path() -> None:
    assert dotted(("messages", 0, "content", 1, "type")) == "messages[0].content[1].type"
    assert dotted(()) == ""


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 100}, "messages"),
        ("/v1/completions", {"prompt": "hi", "max_tokens": 100}, "prompt"),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 100}, "input"),
    ],
)
async def test_the_overflow_sentence_speaks_of_the_routes_own_field(
    client: httpx.AsyncClient, route: str, fields: dict[str, object], param: str
) -> None:
    answer = await client.post(route, json={"model": NAME, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert f" in the {param}, 100 in the completion). Please reduce the length of the {param} or" in error["message"]
