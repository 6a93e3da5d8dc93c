"""Tool calls: split out of the text at any cut, and in OpenAI's shapes, whole and streamed."""

import json
import re
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bundle.answer_format import Markers
from server.api.openai.chat import ChatChunk, ChatCompletion
from server.generation import argument_reading
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.growing_text import MAX_PENDING_CHARACTERS
from server.generation.parsing import AnswerParser
from tests.call_formats import HERMES, answers
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine, say

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ASK: Any = {"model": NAME, "messages": [{"role": "user", "content": "weather?"}], "tools": TOOLS}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
ARGUMENTS = '{"city": "Zürich", "days": 2}'


def split(pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """All text and all calls of a text that comes in pieces."""
    splitter = AnswerParser(answers(HERMES))
    found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.feed("", is_last=True)
    text = "".join(part for part in found if isinstance(part, str))
    calls = {part.index: (part.name, "") for part in found if isinstance(part, CallBegin)}
    for part in found:
        if isinstance(part, CallArguments):
            name, arguments = calls[part.index]
            calls[part.index] = (name, arguments + part.text)
    return text, list(calls.values())


QUOTED = r'<tool_call>{"name": "weather", "arguments": {"city": "a \"}b\" \\\\", "days": 2}}'
CASES = [
    ("plain text, with  spaces \n", "plain text, with  spaces \n", 0),
    ("a < b and <tool> and <tool_cal", "a < b and <tool> and <tool_cal", 0),
    (CALL, "", 1),
    (f"Let me look. \n{CALL}\n", "Let me look.", 1),
    (f"{CALL}\n{CALL}", "", 2),
    (f"{CALL}\n Then: yes. And no.", "Then: yes. And no.", 1),
    (CALL.removesuffix("</tool_call>"), "", 1),  # the end token came first
    ("<tool_call>not json</tool_call> x", "<tool_call>not json</tool_call> x", 0),
    ('<tool_call>{"name": "f", "arguments": "text"}</tool_call>', None, 0),
    ('<tool_call>{"name": "f"}</tool_call>', "", 1),
    ("<tool_call>{", "<tool_call>{", 0),
    (f"{QUOTED}\n</tool_call> after", "after", 1),
]


@pytest.mark.parametrize(("text", "shown", "calls"), CASES)
def test_every_cut_splits_alike(text: str, shown: str | None, calls: int) -> None:
    expected = split([text])
    assert expected[0] == (text if shown is None else shown)
    assert len(expected[1]) == calls
    assert split(list(text)) == expected
    for cut in range(len(text)):
        assert split([text[:cut], text[cut:]]) == expected


@given(st.lists(st.text(alphabet="<tol_ca> \n{}x/", max_size=8)))
def test_text_without_calls_is_untouched(pieces: list[str]) -> None:
    assert split(pieces) == ("".join(pieces), [])


def test_a_call_that_begins_unusually_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    end_of = argument_reading.end_of

    def counted(pattern: re.Pattern[str], text: str, place: int) -> int:
        read.append(len(text) - place)
        return end_of(pattern, text, place)

    monkeypatch.setattr(argument_reading, "end_of", counted)
    for key, rest, calls in (("name", "", 1), ("names", " and so on" * 500, 0)):
        called = f'{{"arguments": {{"text": "{"lorem " * 1000}"}}, "{key}": "f"}}{rest}'
        whole = f"<tool_call>\n{called}\n</tool_call>"
        read.clear()
        shown, found = split([whole[start : start + 4] for start in range(0, len(whole), 4)])
        assert (shown, len(found)) == ("" if calls else whole, calls)
        assert sum(read) < 2 * len(whole)


def test_an_endless_call_is_text_again() -> None:
    text = '<tool_call>{"name' + "x" * 300_000
    splitter = AnswerParser(answers(HERMES))
    assert splitter.feed(text) == [text]


@pytest.fixture
def caller(engine: ScriptedEngine) -> ScriptedEngine:
    """The engine says something, then makes two calls, a few characters at a time."""
    text = f"I look.\n{CALL}\n{CALL}"
    pieces = [text[start : start + 7] for start in range(0, len(text), 7)]
    engine.script = lambda request: say(request, pieces)
    return engine


async def test_a_whole_answer_with_calls(client: httpx.AsyncClient, caller: ScriptedEngine) -> None:
    answer = (await client.post("/v1/chat/completions", json=ASK)).json()
    check_answer(ChatCompletion, answer)
    choice = answer["choices"][0]
    calls = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I look."
    assert [(call["type"], call["function"]) for call in calls] == [
        ("function", {"name": "weather", "arguments": ARGUMENTS})
    ] * 2
    assert calls[0]["id"] != calls[1]["id"]
    assert caller.tools == [TOOLS]


async def test_content_is_null_when_there_are_only_calls(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda request: say(request, [CALL])
    message = (await client.post("/v1/chat/completions", json=ASK)).json()["choices"][0]["message"]
    assert message["content"] is None
    assert len(message["tool_calls"]) == 1


async def test_streamed_calls(client: httpx.AsyncClient, caller: ScriptedEngine) -> None:
    fields = {"stream": True, "logprobs": True}
    answer = await client.post("/v1/chat/completions", json=ASK | fields)
    chunks = [json.loads(part[6:]) for part in answer.text.split("\n\n") if part.startswith("data: {")]
    for chunk in chunks:
        check_answer(ChatChunk, chunk)
    parts = [chunk["choices"][0] for chunk in chunks]
    deltas = [delta for part in parts for delta in part["delta"].get("tool_calls", [])]
    for index in (0, 1):
        first, *more = [delta for delta in deltas if delta["index"] == index]
        assert (first["type"], first["function"]) == ("function", {"name": "weather", "arguments": ""})
        assert len(more) > 3, "arguments come in pieces"
        assert all(set(delta) == {"index", "function"} and set(delta["function"]) == {"arguments"} for delta in more)
        assert "".join(delta["function"]["arguments"] for delta in more) == ARGUMENTS
    assert [part["finish_reason"] for part in parts if part["finish_reason"]] == ["tool_calls"]
    assert "".join(part["delta"].get("content", "") for part in parts) == "I look."
    tokens = sum(len(part["logprobs"]["content"]) for part in parts if part["logprobs"])
    whole = await client.post("/v1/chat/completions", json=ASK | {"logprobs": True})
    assert tokens == whole.json()["usage"]["completion_tokens"]


async def test_the_sdk_rebuilds_streamed_calls(base_url: str, caller: ScriptedEngine) -> None:
    async with (
        openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none") as sdk,
        sdk.chat.completions.stream(**ASK) as stream,
    ):
        async for _ in stream:
            pass
        message = (await stream.get_final_completion()).choices[0].message
    assert message.tool_calls is not None
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("weather", ARGUMENTS)
    ] * 2


async def test_what_the_sdk_sends_back_is_taken(base_url: str, caller: ScriptedEngine) -> None:
    async with openai.AsyncOpenAI(base_url=f"{base_url}/v1", api_key="none") as sdk:
        async with sdk.chat.completions.stream(**ASK) as stream:
            async for _ in stream:
                pass
            streamed = (await stream.get_final_completion()).choices[0].message
        whole = (await sdk.chat.completions.create(**ASK)).choices[0].message
        for message in (streamed, streamed.model_dump(), whole, whole.model_dump()):
            history = [*ASK["messages"], message, {"role": "tool", "tool_call_id": "x", "content": "rain"}]
            await sdk.chat.completions.create(**ASK | {"messages": history})
    for history in caller.chats[2:]:
        assert history[1]["content"] == "I look."
        function = {"name": "weather", "arguments": ARGUMENTS}
        assert [call["function"] for call in history[1]["tool_calls"]] == [function] * 2
        assert all(set(call) == {"id", "type", "function"} for call in history[1]["tool_calls"])


@pytest.mark.parametrize(
    ("said", "max_tokens", "finish"),
    [
        (CALL, 1, "length"),
        (CALL, 9, "tool_calls"),
        (CALL.removesuffix("}\n</tool_call>"), 9, "tool_calls"),
        (f"{CALL}\nSo be it.", 9, "tool_calls"),
        (CALL.partition("ür")[0], 9, "stop"),  # a stop string stood there
        (f"{CALL}\n{CALL.partition('ür')[0]}", 9, "stop"),
    ],
)
async def test_only_a_call_that_can_be_made_finishes_with_tool_calls(
    client: httpx.AsyncClient, engine: ScriptedEngine, said: str, max_tokens: int, finish: str
) -> None:
    engine.script = lambda request: say(request, [said, ""])
    (choice,) = (await client.post("/v1/chat/completions", json=ASK | {"max_tokens": max_tokens})).json()["choices"]
    assert choice["finish_reason"] == finish
    assert ARGUMENTS.startswith(choice["message"]["tool_calls"][-1]["function"]["arguments"])
    answer = await client.post("/v1/chat/completions", json=ASK | {"max_tokens": max_tokens, "stream": True})
    assert json.loads(answer.text.split("\n\n")[-3].removeprefix("data: "))["choices"][0]["finish_reason"] == finish


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Markers("<tool_call>", "</tool_call>")),
        ({"tool_choice": "required", "parallel_tool_calls": False}, Markers("<tool_call>", "</tool_call>")),
        ({"parallel_tool_calls": True}, None),
        ({"tool_choice": "none"}, None),
        ({"tools": None}, None),
    ],
)
async def test_the_same_call_again_ends_the_answer_unless_parallel_calls_are_wanted(
    client: httpx.AsyncClient, caller: ScriptedEngine, fields: dict[str, Any], expected: Markers | None
) -> None:
    caller.script = lambda request: say(request, "yes")
    assert (await client.post("/v1/chat/completions", json=ASK | fields)).status_code == 200
    assert caller.once == [expected]


async def test_tool_choice_none_shows_no_tools_and_leaves_the_text(
    client: httpx.AsyncClient, engine: ScriptedEngine
) -> None:
    engine.script = lambda request: say(request, [CALL])
    answer = (await client.post("/v1/chat/completions", json=ASK | {"tool_choice": "none"})).json()
    assert engine.tools == [None]
    assert answer["choices"][0]["message"]["content"] == CALL
    assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_quotes_and_brackets_inside_strings_end_nothing(size: int) -> None:
    text = f"{QUOTED}</tool_call><tool_call>{QUOTED.removeprefix('<tool_call>')}</tool_call>"
    shown, calls = split([text[start : start + size] for start in range(0, len(text), size)])
    assert shown == ""
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [
        ("weather", {"city": 'a "}b" \\\\', "days": 2})
    ] * 2


def test_an_empty_block_is_text_at_once() -> None:
    shown = AnswerParser(answers(HERMES)).feed("<tool_call></tool_call> and more.")
    assert "".join(piece for piece in shown if isinstance(piece, str)) == "<tool_call></tool_call> and more."


def test_as_much_is_held_as_the_bound_and_no_character_more() -> None:
    begun = '<tool_call>{"names": "'
    splitter, text = AnswerParser(answers(HERMES)), "x" * (MAX_PENDING_CHARACTERS - len(begun))
    assert splitter.feed(begun) == splitter.feed(text) == []
    assert splitter.feed("y") == [f"{begun}{text}y"]
