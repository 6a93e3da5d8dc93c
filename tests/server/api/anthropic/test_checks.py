"""Rules between fields."""

from typing import Any

import pytest

from server.api.anthropic.request import MessagesRequest
from server.api.anthropic.translation import check_fields
from server.http.errors import Refusal


def check(**fields: Any) -> None:
    body = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}
    check_fields(MessagesRequest.model_validate(body | fields))


def test_thinking_may_not_take_all_tokens() -> None:
    check(thinking={"type": "enabled", "budget_tokens": 9})
    with pytest.raises(Refusal, match=r"'max_tokens' \(10\) must be above 'thinking.budget_tokens'"):
        check(thinking={"type": "enabled", "budget_tokens": 10})


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}])
def test_no_conversation_is_held(thread: dict[str, str]) -> None:
    with pytest.raises(Refusal) as refused:
        check(thread=thread)
    assert refused.value.error.code == "thread_unsupported_request"
