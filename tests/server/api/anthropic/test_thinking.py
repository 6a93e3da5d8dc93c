"""What the chat template is told about thinking."""

from typing import Any

import pytest

from server.api.anthropic.request import MessagesRequest
from server.api.anthropic.translation import shows_thoughts, thinking_options

BODY = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
ON = {"enable_thinking": True, "thinking": True}
OFF = {"enable_thinking": False, "thinking": False}


def body(**fields: Any) -> MessagesRequest:
    return MessagesRequest.model_validate(BODY | fields)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, OFF),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, OFF),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, ON),
        ({"thinking": {"type": "adaptive"}, "output_config": {}}, ON),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}, ON | {"reasoning_effort": "low"}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, ON | {"reasoning_effort": "xhigh"}),
    ],
)
def test_options_of_the_template(fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert thinking_options(body(**fields)) == options


@pytest.mark.parametrize(
    ("thinking", "is_shown"),
    [
        (None, True),
        ({"type": "adaptive"}, True),
        ({"type": "adaptive", "display": "summarized"}, True),
        ({"type": "adaptive", "display": "updates"}, True),
        ({"type": "adaptive", "display": "omitted"}, False),
        ({"type": "enabled", "budget_tokens": 5, "display": "omitted"}, False),
    ],
)
def test_thoughts_are_shown_unless_they_are_not_wanted(thinking: Any, is_shown: bool) -> None:
    assert shows_thoughts(body(thinking=thinking)) is is_shown
