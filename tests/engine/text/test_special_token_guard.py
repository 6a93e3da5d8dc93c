"""The separator: nothing the caller writes becomes a control token, and nothing he writes is changed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.prompt import SpecialTokenGuard, choose_separator
from tests.engine.tiny_bundle import SPECIALS

GUARD = SpecialTokenGuard(SPECIALS)
PARTS = st.sampled_from(
    [
        *SPECIALS,
        "<",
        "<|",
        "<|im_",
        "<|im_st",
        "art|>",
        "end|>",
        "|>",
        ">",
        " ",
        "\n",
        "x",
        "\ue000",
        "\ue001",
        "\ue001\ue001",
    ]
)
TEXTS = st.lists(PARTS, max_size=6).map("".join)


def whole_specials(text: str) -> int:
    return sum(text.count(token) for token in SPECIALS)


@given(st.lists(TEXTS, max_size=4))
def test_no_special_token_is_left_even_when_texts_are_joined(texts: list[str]) -> None:
    separator = choose_separator(texts)
    protected = GUARD.protect(texts, separator)
    for text in (*protected, "".join(protected), "".join(part.strip() for part in protected)):
        assert whole_specials(text) == 0


@given(TEXTS, TEXTS)
def test_a_template_cannot_complete_what_the_caller_began(before: str, after: str) -> None:
    separator = choose_separator([before, after])
    start, end = GUARD.protect([before, after], separator)
    for special in SPECIALS:
        for cut in range(1, len(special)):
            assert special not in start + special[cut:] or special in special[cut:]
            assert special not in special[:cut] + end


@given(TEXTS)
def test_removing_the_fence_gives_the_text_back(text: str) -> None:
    separator = choose_separator({"content": text})
    assert separator not in text
    assert GUARD.protect({"content": text}, separator)["content"].replace(separator, "") == text


def test_ordinary_values_are_copied_unchanged() -> None:
    value: dict[str, Any] = {"role": "<|im_end|>", "content": ["a", {"n": 1, "x": None, "deep": (True, 2.5)}]}
    copy = GUARD.protect(value, "|")
    assert copy == {"role": "<|im_end|>", "content": ["a", {"n": 1, "x": None, "deep": [True, 2.5]}]}
    assert copy["content"] is not value["content"]


def test_only_roles_and_types_that_the_server_validates_stay() -> None:
    own = {"type": "<", "role": "<"}
    messages = [{**own, "content": [{"type": "<", "text": own}], "tool_calls": [{"type": "<", "function": own}]}]
    fenced = {"type": "<#", "role": "<#"}
    assert GUARD.protect(messages, "#") == [
        {**own, "content": [{"type": "<", "text": fenced}], "tool_calls": [{"type": "<", "function": fenced}]}
    ]
    tool = {"type": "<", "function": {"parameters": {"type": "<", "properties": {"role": own}}}}
    assert GUARD.protect([tool], "#") == [
        {"type": "<", "function": {"parameters": {"type": "<#", "properties": {"role": fenced}}}}
    ]


def test_keys_are_fenced_too() -> None:
    assert GUARD.protect({"<|im_end|>": "<"}, "#") == {"<#|im_end|>": "<#"}


def test_a_vocabulary_without_special_tokens_needs_no_fence() -> None:
    assert SpecialTokenGuard(()).protect({"content": "<|im_end|>"}, "#") == {"content": "<|im_end|>"}


@pytest.mark.parametrize("run", [1, 2, 7])
def test_a_separator_is_never_one_that_the_caller_wrote(run: int) -> None:
    written = "\ue000" + "\ue001" * run + "\ue000"
    usual = choose_separator("plain")
    for value in (written, {"content": [written]}, {written: 1}, [{"deep": {"deeper": (written,)}}]):
        separator = choose_separator(value)
        assert separator not in written
        assert (separator == usual) is False
