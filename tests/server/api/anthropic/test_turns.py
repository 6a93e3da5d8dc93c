"""Anthropic's turns as a chat template reads them."""

from typing import Any

import pytest

from server.api.anthropic.message import signature_of, thoughts_of
from server.api.anthropic.request import CountTokensRequest
from server.api.anthropic.translation import template_turns
from server.http.errors import Refusal

CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}
HI = {"role": "user", "content": "hi"}


def turns(*messages: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return template_turns(CountTokensRequest.model_validate({"model": "m", "messages": list(messages)} | fields))


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said} | more


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content} | more


def test_texts_and_blocks_are_the_same() -> None:
    cached = {"type": "ephemeral", "ttl": "1h"}
    plain = turns(HI, system="be brief")
    blocks = turns(
        {"role": "user", "content": [text("hi", cache_control=cached)]},
        system=[text("be brief", cache_control={"type": "ephemeral"})],
    )
    assert plain == blocks == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]


def test_a_tool_loop() -> None:
    assistant = [{"type": "thinking", "thinking": "Hm", "signature": "x"}, text("Let me see."), CALL]
    found = turns(
        HI, {"role": "assistant", "content": assistant}, {"role": "user", "content": [result("7"), text("and?")]}
    )
    function = {"name": "f", "arguments": '{"x":1}'}
    assert found == [
        HI,
        {
            "role": "assistant",
            "content": "Let me see.",
            "reasoning_content": "Hm",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "7", "tool_call_id": "toolu_1"},
        {"role": "user", "content": "and?"},
    ]


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        (result("7", is_error=True), "Error: 7"),
        (result("7", is_error=False), "7"),
        (result([text("a"), text("b")]), "a\nb"),
        (result([{"type": "tool_reference", "tool_name": "g"}]), "Loaded: g"),
        (result(None), ""),
    ],
)
def test_results_of_calls(block: dict[str, Any], shown: str) -> None:
    found = turns(HI, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [block]})
    assert found[-1]["content"] == shown


def test_turns_of_one_role_are_one() -> None:
    found = turns(
        HI,
        {"role": "user", "content": [text("there")]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
        HI,
    )
    assert [turn["content"] for turn in found] == ["hi\nthere", "a\nb", "hi"]


def test_instructions_in_the_middle_are_said_in_the_users_turn() -> None:
    found = turns(
        {"role": "system", "content": "first"}, HI, {"role": "system", "content": [text("later")]}, system="s"
    )
    reminder = "hi\n<system-reminder>\nlater\n</system-reminder>"
    assert found == [{"role": "system", "content": "s\nfirst"}, {"role": "user", "content": reminder}]


def test_an_instruction_for_one_turn_is_over_with_the_next() -> None:
    once = {"role": "system", "content": "once", "clear_at": "next_user_message"}
    answer = {"role": "assistant", "content": "a"}
    assert "once" in turns(HI, once)[0]["content"]
    assert turns(HI, once, answer, HI) == [HI, answer, HI]
    assert "once" in turns(HI, once | {"clear_at": "never"}, answer, HI)[0]["content"]


def test_changes_of_tools_say_nothing() -> None:
    change = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "f"}}
    assert turns(HI, {"role": "system", "content": [change]}) == [HI]


def test_the_billing_note_of_claude_code_is_not_shown() -> None:
    found = turns(HI, system=[text("x-anthropic-billing-header: cc_version=2.1; cch=0af31;"), text("be brief")])
    assert found[0] == {"role": "system", "content": "be brief"}


def test_an_assistants_turn_is_not_continued() -> None:
    with pytest.raises(Refusal) as refused:
        turns(HI, {"role": "assistant", "content": "The answer is"})
    assert "must end with a turn of the user" in refused.value.error.message


def test_a_last_turn_without_a_block_is_refused_by_name() -> None:
    """The model would be asked to go on behind its own answer."""
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]
    with pytest.raises(Refusal) as refused:
        turns(*said, {"role": "user", "content": []})
    assert refused.value.error.param == "messages[2].content"
    assert turns({"role": "user", "content": []}, said[0]) == [said[0]]


def test_thoughts_that_were_left_out_come_back() -> None:
    signature = signature_of("Hm é", is_shown=False)
    block = {"type": "thinking", "thinking": "", "signature": signature}
    found = turns(HI, {"role": "assistant", "content": [block, CALL]}, {"role": "user", "content": [result("7")]})
    assert found[1]["reasoning_content"] == "Hm é"


@pytest.mark.parametrize("signature", ["held.%%%", "held.SG0", "EqQBCgIYAhIM", "", None])
def test_other_signatures_hold_nothing(signature: str | None) -> None:
    assert thoughts_of("", signature) == ""
    assert thoughts_of("shown", signature) == "shown"
