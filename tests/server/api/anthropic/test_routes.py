"""POST /v1/messages and count_tokens over HTTP, and the list of models for the same callers."""

from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.errors import StepFailed
from engine.request import Delta, FinishReason, ThinkingBudget
from server.api.anthropic.message import MessageAnswer
from server.api.anthropic.models import AnthropicModelPage
from server.middleware.auth import KeyRing
from server.settings import Settings
from tests.server.answers import check_answer
from tests.server.message_events import check_legal, events_of, message_of
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine, say

PATH = "/v1/messages"
HELLO: dict[str, Any] = {
    "model": NAME,
    "max_tokens": 20,
    "messages": [{"role": "user", "content": "say hello please"}],
}
TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
CALL = ('<tool_call>{"name": "f", "arguments": {"x"', ": 1}}", "</tool_call>")
THOUGHTS = ("<think>", "Hm", ", ok.", "</think>", "\n\nHi", " there")
VERSION = {"anthropic-version": "2023-06-01"}


async def message(client: httpx.AsyncClient, **fields: Any) -> Any:
    """The message, whole and as the stream adds up to it, which are the same but for ids."""
    answer = await client.post(PATH, json=HELLO | fields, headers=VERSION)
    assert answer.status_code == 200, answer.text
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    check_answer(MessageAnswer, answer.json())
    streamed = await client.post(f"{PATH}?beta=true", json=HELLO | fields | {"stream": True}, headers=VERSION)
    events = events_of(streamed.text)
    check_legal(events)
    added = message_of(events)
    assert [without_id(block) for block in added["content"]] == [without_id(one) for one in answer.json()["content"]]
    assert {key: added[key] for key in ("stop_reason", "usage")} == {
        key: answer.json()[key] for key in ("stop_reason", "usage")
    }
    return answer.json()


def without_id(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "id"}


async def test_a_whole_answer(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    fields = {"system": "be brief", "temperature": 0.5, "metadata": {"user_id": "u"}, "service_tier": "auto"}
    answer = await message(client, **fields)
    assert answer == {
        "id": answer["id"],
        "type": "message",
        "role": "assistant",
        "model": NAME,
        "content": [{"type": "text", "text": "Hello there, friend!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 3,
            "output_tokens": 5,
            "output_tokens_details": {"thinking_tokens": 0},
            "service_tier": "standard",
        },
    }
    assert answer["id"].startswith("msg_")
    assert engine.chats[0] == [{"role": "system", "content": "be brief"}, HELLO["messages"][0]]
    assert engine.submitted[0][0].params.temperature == 0.5


async def test_tools_are_shown_and_called(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, CALL)
    answer = await message(client, tools=[TOOL])
    (call,) = answer["content"]
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"x": 1})
    assert answer["stop_reason"] == "tool_use"
    function = {"name": "f", "parameters": TOOL["input_schema"]}
    assert engine.tools[0] == [{"type": "function", "function": function}]
    assert engine.forms == []


@pytest.mark.parametrize(
    ("choice", "forced", "most"),
    [
        ({"type": "any"}, True, 0),
        ({"type": "any", "disable_parallel_tool_use": True}, True, 1),
        ({"type": "tool", "name": "f"}, True, 1),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, 1),
    ],
)
async def test_choices_become_grammars(
    client: httpx.AsyncClient, engine: ScriptedEngine, choice: dict[str, Any], forced: bool, most: int
) -> None:
    engine.script = lambda request: say(request, CALL)
    await message(client, tools=[TOOL], tool_choice=choice)
    spec, _ = engine.forms[0]
    assert (spec.form.is_forced, spec.form.most) == (forced, most)  # type: ignore[union-attr]


async def test_no_tools_are_shown_when_none_may_be_called(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await message(client, tools=[TOOL], tool_choice={"type": "none"})
    assert engine.tools[0] is None


async def test_thinking_has_its_block_and_its_bound(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    engine.script = lambda request: say(request, THOUGHTS)
    answer = await message(client, thinking={"type": "enabled", "budget_tokens": 7})
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hm, ok.", "signature": "unsigned"},
        {"type": "text", "text": "Hi there"},
    ]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] == 4
    assert engine.submitted[0][0].params.thinking_budget == ThinkingBudget(7, (30,), (31,))
    assert engine.options[0] == {"enable_thinking": True, "thinking": True}


async def test_without_thinking_the_model_is_told_so(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    await message(client)
    assert engine.options[0] == {"enable_thinking": False, "thinking": False}


async def test_a_model_that_does_not_reason_may_be_asked_to_think_as_it_likes(client: httpx.AsyncClient) -> None:
    answer = await message(
        client, thinking={"type": "adaptive", "display": "omitted"}, output_config={"effort": "high"}
    )
    assert [block["type"] for block in answer["content"]] == ["text"]


async def test_stop_sequences(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda _: [Delta("Hello", (10,)), Delta("", (11,), finish=FinishReason.STOP, stopped_by="X")]
    answer = await message(client, stop_sequences=["X", "Y"])
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "X")
    assert engine.submitted[0][1] == ("X", "Y")


async def test_max_tokens_and_the_end_of_the_window(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    answer = await message(client, max_tokens=2)
    assert (answer["stop_reason"], answer["usage"]["output_tokens"]) == ("max_tokens", 2)
    engine.script = lambda request: say(request, ["word "] * 200)
    answer = await message(client, max_tokens=32_000)
    assert answer["stop_reason"] == "model_context_window_exceeded"
    assert engine.submitted[-1][0].params.max_tokens == 97  # of a window of 100


async def test_a_schema_for_the_answer(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    await message(client, output_config={"format": {"type": "json_schema", "schema": TOOL["input_schema"]}})
    assert engine.forms[0][1] == "response_format.json_schema.schema"


async def test_a_stream_that_breaks_ends_with_an_error(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: [*say(request)[:2], StepFailed("the graph broke")]
    answer = await client.post(PATH, json=HELLO | {"stream": True})
    events = events_of(answer.text)
    check_legal(events)
    error = {"type": "api_error", "message": "the graph broke"}
    assert events[-1] == {"type": "error", "error": error, "request_id": answer.headers["request-id"]}


async def test_a_late_answer_begins_at_once_and_pings(settings: Settings, engine: ScriptedEngine) -> None:
    """The first two events come before the model says anything."""
    app = create_app(Settings(settings.engine, keep_alive_s=0.01), engine, KeyRing())
    engine.hold()

    async def released_by_a_ping(scope: Scope, receive: Receive, send: Send) -> None:
        async def watching(piece: Message) -> None:
            if b"event: ping" in piece.get("body", b""):
                engine.release(100)
            await send(piece)

        await app(scope, receive, watching)

    transport = httpx.ASGITransport(released_by_a_ping)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        answer = await client.post(PATH, json=HELLO | {"stream": True})
    events = events_of(answer.text)
    check_legal(events)
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert message_of(events)["content"] == [{"type": "text", "text": "Hello there, friend!"}]


async def test_tokens_are_counted_as_the_prompt_has_them(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    asked = {"system": "be brief", "tools": [TOOL], "thinking": {"type": "adaptive"}}
    usage = (await message(client, **asked))["usage"]
    body = {key: value for key, value in HELLO.items() if key != "max_tokens"} | asked
    counted = await client.post(f"{PATH}/count_tokens", json=body)
    assert counted.json() == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert engine.chats[-1] == engine.chats[0] and engine.tools[-1] == engine.tools[0]
    assert engine.options[-1] == engine.options[0]


async def test_a_model_that_embeds_counts_no_messages(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.embed()
    for path in (PATH, f"{PATH}/count_tokens"):
        body = {key: value for key, value in HELLO.items() if path == PATH or key != "max_tokens"}
        answer = await client.post(path, json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["message"].startswith("This model generates no text; it makes embeddings")


async def test_models_in_anthropics_form(client: httpx.AsyncClient) -> None:
    listed = (await client.get("/v1/models", headers=VERSION)).json()
    check_answer(AnthropicModelPage, listed)
    (model,) = listed["data"]
    assert (model["id"], listed["has_more"], listed["first_id"]) == (NAME, False, NAME)
    assert (await client.get(f"/v1/models/{NAME}", headers=VERSION)).json() == model
    assert (await client.get("/v1/models")).json()["object"] == "list"
