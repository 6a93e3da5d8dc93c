"""A body of /v1/messages as the chat route's functions take it."""

from typing import Any

import pytest

from server.api.anthropic.request import MessagesRequest
from server.api.anthropic.translation import message_chat, own_name
from server.generation.chat_request import ChosenFunction, JsonSchemaFormat, NamedToolChoice

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOL = {"name": "f", "description": "does f", "input_schema": SCHEMA}
BODY = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}


def body(**fields: Any) -> MessagesRequest:
    return MessagesRequest.model_validate(BODY | fields, strict=True)


def test_the_fields_of_sampling() -> None:
    chat = message_chat(body(temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["a", "b"], stream=True))
    assert (chat.temperature, chat.top_p, chat.top_k, chat.stop) == (0.5, 0.9, 7, ["a", "b"])
    assert (chat.max_completion_tokens, chat.max_tokens, chat.stream, chat.n) == (10, None, True, None)


def test_tools() -> None:
    (tool,) = message_chat(body(tools=[TOOL | {"strict": True, "type": "custom"}])).tools or ()
    assert tool.model_dump() == {
        "type": "function",
        "function": {"name": "f", "description": "does f", "parameters": SCHEMA, "strict": True},
    }


@pytest.mark.parametrize(
    ("choice", "wanted", "is_parallel"),
    [
        (None, None, None),
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "f"}, NamedToolChoice(type="function", function=ChosenFunction(name="f")), True),
        ({"type": "none"}, "none", None),
    ],
)
def test_choices_of_tools(choice: Any, wanted: Any, is_parallel: bool | None) -> None:
    chat = message_chat(body(tools=[TOOL], tool_choice=choice))
    assert (chat.tool_choice, chat.parallel_tool_calls) == (wanted, is_parallel)


@pytest.mark.parametrize("kind", ["auto", "none"])
def test_a_choice_that_forces_nothing_needs_no_tools(kind: str) -> None:
    chat = message_chat(body(tool_choice={"type": kind}))
    assert (chat.tool_choice, chat.parallel_tool_calls) == (None, None)
    assert message_chat(body(tool_choice={"type": "any"})).tool_choice == "required"  # which the chat route refuses


def test_a_schema_for_the_answer() -> None:
    chat = message_chat(body(output_config={"format": {"type": "json_schema", "schema": SCHEMA}}))
    assert isinstance(chat.response_format, JsonSchemaFormat)
    assert (chat.response_format.json_schema.definition, chat.response_format.json_schema.strict) == (SCHEMA, True)


def test_a_bound_on_thinking() -> None:
    assert message_chat(body(thinking={"type": "enabled", "budget_tokens": 5})).thinking_token_budget == 5
    assert message_chat(body(thinking={"type": "adaptive"})).thinking_token_budget is None


def test_names() -> None:
    assert (own_name("stop"), own_name("messages[0].content")) == ("stop_sequences", "messages[0].content")
