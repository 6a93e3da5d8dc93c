"""Messages, tools and the end of a prompt as `chat_template` reads them."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from engine.bundle.answer_format import AnswerFormat
from server.generation.chat_request import ChatRequest, Message
from server.generation.chat_template import (
    END_TOKENS,
    Thinking,
    chat_tools,
    check_no_images,
    joined_text,
    template_messages,
    template_options,
    thinking_after,
    thinking_budget,
)
from server.http.errors import Refusal
from tests.call_formats import HERMES, THINK, answers
from tests.server.scripted_engine import NAME, ScriptedEngine

CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
PICTURE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
TEXT = {"type": "text", "text": "a"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def messages(*given: dict[str, Any]) -> list[dict[str, Any]]:
    return template_messages(TypeAdapter(list[Message]).validate_python(given))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        ({"role": "user", "content": [TEXT, TEXT]}, {"role": "user", "content": "a\na"}),
        ({"role": "developer", "content": "a", "name": "n"}, {"role": "system", "content": "a", "name": "n"}),
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": ""}),
        ({"role": "assistant", "content": "a", "tool_calls": []}, {"role": "assistant", "content": "a"}),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"index": 0}], "parsed": {"x": 1}},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        (
            {"role": "assistant", "tool_calls": [CALL | {"function": CALL["function"] | {"parsed_arguments": {}}}]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
        ),
        (
            {"role": "tool", "content": "a", "tool_call_id": "c"},
            {"role": "tool", "content": "a", "tool_call_id": "c"},
        ),
    ],
)
def test_messages(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert messages(given) == [expected]


@pytest.mark.parametrize("given", [{}, {"content": None}, {"tool_calls": []}, {"content": None, "tool_calls": None}])
def test_an_assistant_says_something_or_calls(given: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        messages({"role": "user", "content": "a"}, {"role": "assistant"} | given)
    error = refused.value.error
    assert (error.param, error.code) == ("messages[1].content", "missing_required_parameter")


def test_images_stay_in_their_place() -> None:
    shown = messages({"role": "user", "content": "a"}, {"role": "user", "content": [TEXT, PICTURE]})
    param = "messages[1].content[1].image_url"
    image = {"type": "image", "url": "https://example.org/a.png", "detail": "low", "param": param}
    assert shown[1]["content"] == [{"type": "text", "text": "a"}, image]
    with pytest.raises(Refusal) as refused:
        check_no_images(shown)
    assert (refused.value.error.param, refused.value.error.code) == ("messages[1].content[1].type", "unsupported_value")
    check_no_images(messages({"role": "user", "content": [TEXT]}))
    assert joined_text("b") == "b"


def tools(answer: AnswerFormat, **fields: Any) -> list[dict[str, Any]] | None:
    body = {"model": NAME, "messages": [{"role": "user", "content": "a"}], **fields}
    return chat_tools(ChatRequest.model_validate(body), answer)


def test_tools_are_shown_without_what_only_we_read() -> None:
    strict = {"type": "function", "function": TOOL["function"] | {"strict": True}}
    assert tools(answers(HERMES), tools=[strict]) == [TOOL]
    assert tools(answers(HERMES), tools=[TOOL], tool_choice="none") is None
    assert tools(answers(HERMES)) is None
    for answer, fields, param in (
        (answers(HERMES), {"tool_choice": "auto"}, "tool_choice"),
        (answers(HERMES), {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (AnswerFormat(), {"tools": [TOOL]}, "tools"),
        (AnswerFormat(), {"tools": [TOOL], "tool_choice": "none"}, "tools"),
    ):
        with pytest.raises(Refusal) as refused:
            tools(answer, **fields)
        assert refused.value.error.param == param


def test_options() -> None:
    assert template_options(None, None) == {}
    assert template_options({"a": 1}, None, False) == {"a": 1, "add_generation_prompt": False}
    assert template_options({"thinking": 1}, "low") == {
        "reasoning_effort": "low",
        "enable_thinking": True,
        "thinking": 1,
    }
    assert template_options(None, "none", True) == {
        "reasoning_effort": "none",
        "enable_thinking": False,
        "thinking": False,
        "add_generation_prompt": True,
    }


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("<a>", Thinking(THINK)),
        ("<think>\n", Thinking(THINK, is_open=True)),
        ("<think></think>\n\n", Thinking(THINK, is_over=True)),
        ("<think></think>ok ", Thinking(THINK)),
        (">>>", Thinking(THINK, prefilled=">>>")),
        (">>> ", Thinking(THINK)),
    ],
)
async def test_how_the_model_goes_on(engine: ScriptedEngine, end: str, expected: Thinking) -> None:
    engine.write(answer=AnswerFormat(reasoning=THINK, prefill=">>>", calls=HERMES))
    engine.prompt_end = end.encode()
    assert thinking_after([7] * (END_TOKENS + 1), engine) == expected
    assert (thinking_budget(5, expected, engine) is None, thinking_budget(None, expected, engine)) == (False, None)
    engine.write(answer=AnswerFormat(prefill=">>>"))
    assert thinking_after([7], engine) == Thinking(None, prefilled=expected.prefilled)
    with pytest.raises(Refusal) as refused:
        thinking_budget(5, Thinking(None), engine)
    assert refused.value.error.param == "thinking_token_budget"
