"""Thinking is told from the answer: whole and streamed, with tools, with a budget, counted in the usage."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bundle.answer_format import Markers
from engine.request import Delta, FinishReason, ThinkingBudget
from server.api.openai.chat import ChatChunk, ChatCompletion
from server.generation.parsing import AnswerParser, ParsedChoice, Thought
from tests.server.answers import check_answer
from tests.server.scripted_engine import NAME, ScriptedEngine, say

MARKERS = Markers("<think>", "</think>")
HELLO = {"model": NAME, "messages": [{"role": "user", "content": "say hello please"}]}
WORDS = ("<think>", "\nHm", ", ok", ".\n", "</think>", "\n\n", "Hi", " <think>x</think>", "!")


def split(pieces: list[str], is_open: bool = False) -> tuple[str, str, int]:
    choice = ParsedChoice(AnswerParser(reasoning=MARKERS, is_open=is_open))
    parts = [part for piece in pieces for part in choice.take(Delta(piece, (1,)))]
    parts += choice.take(Delta("", (1,), finish=FinishReason.STOP))
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    return thoughts, "".join(part for part in parts if isinstance(part, str)), choice.new_reasoning_tokens()


@pytest.mark.parametrize(
    ("text", "is_open", "thoughts", "answer"),
    [
        ("hello", False, "", "hello"),
        ("  hello ", False, "", "  hello "),
        ("", False, "", ""),
        ("<think>a b</think>c", False, "a b", "c"),
        ("\n<think>\n a\n b \n</think>\n\n c \n", False, "a\n b", "c \n"),
        ("<think></think>c", False, "", "c"),
        ("<think>a", False, "a", ""),
        ("<think>a </thin", False, "a </thin", ""),
        ("<thin", False, "", "<thin"),
        ("a</think>\nb", True, "a", "b"),
        ("a", True, "a", ""),
        ("x<think>a</think>", False, "", "x<think>a</think>"),
        ("<think>a</think>b</think>c<think>", False, "a", "b</think>c<think>"),
        ("<think>a</think>", False, "a", ""),
        ("<think>   </think>   ", False, "", ""),
    ],
)
def test_the_same_wherever_the_text_is_cut(text: str, is_open: bool, thoughts: str, answer: str) -> None:
    assert split([text], is_open)[:2] == (thoughts, answer)
    assert split(list(text), is_open)[:2] == (thoughts, answer)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "</", " ", "\n", "a", "b c"]), max_size=12))
def test_pieces_do_not_matter(parts: list[str]) -> None:
    text = "".join(parts)
    assert split([text])[:2] == split(parts)[:2] == split(list(text))[:2]


def test_tokens_of_the_reasoning() -> None:
    assert split(["\n", "<think>", "a", "b", "</think>", "c", "d"])[2] == 5
    assert split(["a", "b"], is_open=True)[2] == 3
    assert split(["\n", "a", "b"])[2] == 0
    plain = ParsedChoice(AnswerParser())  # of a model that does not reason
    assert (plain.take(Delta("a", (1,))), plain.new_reasoning_tokens()) == (["a"], 0)


@pytest.fixture
async def thinker(engine: ScriptedEngine) -> ScriptedEngine:
    engine.think()
    engine.script = lambda request: say(request, WORDS)
    return engine


async def chat(client: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await client.post("/v1/chat/completions", json=HELLO | fields)
    assert answer.status_code == 200, answer.text
    if not fields.get("stream"):
        check_answer(ChatCompletion, answer.json())
        return answer.json()
    chunks = [json.loads(part.removeprefix("data: ")) for part in answer.text.split("\n\n")[:-2]]
    for chunk in chunks:
        check_answer(ChatChunk, chunk)
    return chunks


async def test_a_whole_answer(client: httpx.AsyncClient, thinker: ScriptedEngine) -> None:
    answer = await chat(client, logprobs=True)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm, ok.", "Hi <think>x</think>!")
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 5}
    assert len(answer["choices"][0]["logprobs"]["content"]) == answer["usage"]["completion_tokens"] == 10


async def test_a_stream(client: httpx.AsyncClient, thinker: ScriptedEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = await chat(client, stream=True, n=2, logprobs=True, stream_options=options)
    for index in range(2):
        own = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
        order = [next(iter(part["delta"]), "end") for part in own]
        assert order == ["role", *["reasoning_content"] * 3, *["content"] * 3, "end"]
        assert "".join(part["delta"].get("reasoning_content", "") for part in own) == "Hm, ok."
        assert "".join(part["delta"].get("content", "") for part in own) == "Hi <think>x</think>!"
        assert sum(len(part["logprobs"]["content"]) for part in own if part["logprobs"]) == 10
    assert chunks[-1]["usage"]["completion_tokens_details"] == {"reasoning_tokens": 10}
    spent = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    assert spent == sorted(spent)


async def test_a_prompt_that_opens_it_and_a_cut_text(client: httpx.AsyncClient, thinker: ScriptedEngine) -> None:
    thinker.prompt_end = b"<think>\n"
    thinker.script = lambda request: say(request, ("Well", ", so", " on"))
    answer = await chat(client, max_tokens=2, thinking_token_budget=7)
    message = answer["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Well, so", "")
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert thinker.submitted[0][0].params.thinking_budget == ThinkingBudget(7, (), (31,))


async def test_calls_after_thinking(client: httpx.AsyncClient, thinker: ScriptedEngine) -> None:
    thinker.script = lambda request: say(
        request, ("<think>f?</think>", '<tool_call>{"name": "f", "arguments": {"x": 1}}', "</tool_call>")
    )
    tools = [{"type": "function", "function": {"name": "f"}}]
    for stream in (False, True):
        answer = await chat(client, tools=tools, stream=stream)
        if stream:
            kinds = [key for chunk in answer for key in chunk["choices"][0]["delta"]]
            assert kinds == ["role", "content", "reasoning_content", "tool_calls", "tool_calls"]
        else:
            message = answer["choices"][0]["message"]
            assert (message["reasoning_content"], message["content"]) == ("f?", None)
            assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
