"""Which tools the model is shown."""

from typing import Any

import pytest

from server.api.anthropic.request import CountTokensRequest
from server.api.anthropic.translation import offered_tools
from server.http.errors import Refusal

HI = {"role": "user", "content": "hi"}


def tool(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}} | more


def offered(*messages: dict[str, Any], tools: list[dict[str, Any]]) -> str:
    body = CountTokensRequest.model_validate({"model": "m", "messages": [HI, *messages], "tools": tools})
    return " ".join(one.name for one in offered_tools(body))


def system(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "system", "content": list(blocks)}


def added(name: str) -> dict[str, Any]:
    return {"type": "tool_addition", "tool": {"type": "tool_reference", "name": name}}


def removed(name: str) -> dict[str, Any]:
    return {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}}


def found(*names: str) -> dict[str, Any]:
    """The result of a search for tools."""
    references = [{"type": "tool_reference", "tool_name": name} for name in names]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": references}]}


TOOLS = [tool("late", defer_loading=True), tool("a"), tool("b")]


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ((), "a b"),
        ((found("late"),), "a b late"),
        ((found("late", "late", "unknown"),), "a b late"),
        ((system(added("late")),), "a b late"),
        ((system(removed("a")),), "b"),
        ((system(removed("a")), HI, system(added("a"))), "b a"),
        ((system(added("late")), system(removed("late"), removed("unknown"))), "a b"),
        ((system({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": tool("c")}}),), "a b c"),
    ],
)
def test_what_a_conversation_adds_and_takes_away(messages: tuple[dict[str, Any], ...], names: str) -> None:
    assert offered(*messages, tools=TOOLS) == names


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(Refusal, match="Two tools are named 'a'"):
        offered(tools=[tool("a"), tool("b"), tool("a")])
