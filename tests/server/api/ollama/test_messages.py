"""Messages in Ollama's format as a chat template reads them."""

from typing import Any

import pytest

from engine.text.rendering import TextFacts
from server.api.ollama.requests import OllamaGenerateRequest, OllamaMessage
from server.api.ollama.translation import check_prompt, prompt_turns, template_turns
from server.http.errors import Refusal


def turns(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return template_turns([OllamaMessage.model_validate(message) for message in messages])


def call(name: str, **given: Any) -> dict[str, Any]:
    return {"function": {"name": name, "arguments": {"x": 1}}, **given}


def test_plain_messages() -> None:
    assert turns(
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "bob", "images": []},
        {"role": "assistant", "content": "ho", "thinking": "hm"},
        {"role": "user"},
    ) == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi", "name": "bob"},
        {"role": "assistant", "content": "ho", "reasoning_content": "hm"},
        {"role": "user", "content": ""},
    ]


def test_an_empty_thought_is_none() -> None:
    assert turns({"role": "assistant", "content": "ho", "thinking": ""}) == [{"role": "assistant", "content": "ho"}]


def test_calls_get_ids_that_mistrals_templates_take() -> None:
    [turn] = turns({"role": "assistant", "tool_calls": [call("f"), call("g", id="mine", index=1, type="function")]})
    assert turn["tool_calls"] == [
        {"id": "c00000000", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}},
        {"id": "mine", "type": "function", "function": {"name": "g", "arguments": {"x": 1}}},
    ]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([{}, {}, {}], [("a", "f"), ("b", "g"), ("c", "f")]),
        ([{"tool_name": "g"}, {"tool_name": "f"}, {"tool_name": "f"}], [("b", "g"), ("a", "f"), ("c", "f")]),
        ([{"tool_call_id": "c"}, {"name": "f"}, {}], [("c", "f"), ("a", "f"), ("b", "g")]),
        ([{"tool_call_id": "unknown"}, {"tool_name": "h"}], [("unknown", None), (None, "h")]),
        ([{}] * 4, [("a", "f"), ("b", "g"), ("c", "f"), (None, None)]),
    ],
    ids=["in order", "by tool", "by id", "of nobody", "one too many"],
)
def test_a_result_finds_its_call(results: list[dict[str, str]], expected: list[tuple[str | None, str | None]]) -> None:
    called = {"role": "assistant", "tool_calls": [call("f", id="a"), call("g", id="b"), call("f", id="c")]}
    _, *found = turns(called, *({"role": "tool", "content": "42", **result} for result in results))
    assert [(turn.get("tool_call_id"), turn.get("name")) for turn in found] == expected


def test_images_stand_before_the_text() -> None:
    _, found = turns({"role": "user", "content": "a"}, {"role": "user", "content": "b", "images": ["aGk=", "aGk="]})
    assert [part["type"] for part in found["content"]] == ["image", "image", "text"]
    assert [part["param"] for part in found["content"][:2]] == ["messages[1].images[0]", "messages[1].images[1]"]


@pytest.mark.parametrize(
    ("fields", "template", "is_raw"),
    [({}, "{{ messages }}", False), ({"raw": True}, "{{ messages }}", True), ({"system": ""}, None, True)],
)
def test_a_prompt_is_raw_when_it_says_so_or_nothing_can_render_it(
    fields: dict[str, Any], template: str | None, is_raw: bool
) -> None:
    text = TextFacts(None, None, False, (), template)
    body = OllamaGenerateRequest.model_validate({"model": "m", "prompt": "hi", **fields})
    assert check_prompt(body, text) is is_raw


def test_the_systems_words_need_a_template() -> None:
    text = TextFacts(None, None, False, (), None)
    body = OllamaGenerateRequest.model_validate({"model": "m", "prompt": "hi", "system": "be brief"})
    with pytest.raises(Refusal, match="'system' is not supported by a model without a chat template"):
        check_prompt(body, text)


def test_a_prompt_is_one_message_or_two() -> None:
    body = OllamaGenerateRequest.model_validate({"model": "m", "prompt": "hi"})
    assert prompt_turns(body) == [{"role": "user", "content": "hi"}]
