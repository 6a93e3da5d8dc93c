"""The shipped tokenizer and chat template."""

import json
from functools import cache
from random import Random
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from engine.demo.location import demo_folder
from tools.demo_model.corpus.conversation import Sample, SampleCall, Turn, render
from tools.demo_model.corpus.mixture import draw
from tools.demo_model.vocabulary import CHAT_TEMPLATE, SPECIAL_TOKENS, encode

_TOKENIZER = Tokenizer.from_file(str(demo_folder() / "tokenizer.json"))
_WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda content: json.dumps(content, ensure_ascii=False)
    return environment.from_string(CHAT_TEMPLATE)


def _filled(**variables: Any) -> str:
    return _template().render(**variables)


def messages(sample: Sample) -> list[dict[str, Any]]:
    """Return the turns in the form of the OpenAI chat API."""
    result: list[dict[str, Any]] = []
    for turn in sample.turns:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        if turn.calls:
            functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in turn.calls]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        result.append(message)
    return result


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.text())
def test_any_text_survives_the_tokenizer(text: str) -> None:
    ids = _TOKENIZER.encode(text, add_special_tokens=False).ids
    assert _TOKENIZER.decode(ids, skip_special_tokens=False) == text


def test_special_tokens_are_single_and_come_first() -> None:
    assert [_TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    for token in SPECIAL_TOKENS:
        assert len(_TOKENIZER.encode(token).ids) == 1


def test_digits_are_split_singly_and_nothing_is_added() -> None:
    assert _TOKENIZER.encode("2048").tokens == ["2", "0", "4", "8"]


def test_shipped_template_is_the_one_in_the_code() -> None:
    config = json.loads((demo_folder() / "tokenizer_config.json").read_text())
    assert config["chat_template"] == CHAT_TEMPLATE
    assert config["eos_token"] == "<|im_end|>"


def test_template_renders_what_the_model_was_trained_on() -> None:
    for index in range(300):
        sample = draw(Random(index))
        if not sample.document:
            expected = "".join(span.text for span in render(sample))
            assert _filled(messages=messages(sample), tools=list(sample.tools)) == expected


def test_template_renders_system_tools_calls_and_results() -> None:
    call = SampleCall("get_weather", {"city": "Zürich"})
    turns = (
        Turn("system", "Be brief."),
        Turn("user", "Weather?"),
        Turn("assistant", "Let me see.", (call, call)),
        Turn("tool", "rain"),
        Turn("tool", "sun"),
    )
    text = _filled(messages=messages(Sample(turns)), tools=[_WEATHER], add_generation_prompt=True)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert f"<tools>\n{json.dumps(_WEATHER)}\n</tools>" in text
    assert (
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool'
        in text
    )
    assert (
        "<|im_start|>user\n<tool_response>\nrain\n</tool_response>\n<tool_response>\nsun\n</tool_response><|im_end|>\n"
        in text
    )
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("content", ["hi", [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]])
def test_template_takes_content_in_parts(content: Any) -> None:
    assert _filled(messages=[{"role": "user", "content": content}]) == "<|im_start|>user\nhi<|im_end|>\n"


def test_template_takes_arguments_as_text_and_no_content() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    text = _filled(messages=[{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert text.endswith('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n')


def test_template_treats_developer_as_system() -> None:
    text = _filled(messages=[{"role": "developer", "content": "x"}, {"role": "user", "content": "y"}])
    assert text.startswith("<|im_start|>system\nx<|im_end|>\n<|im_start|>user\ny")


def test_only_answers_are_learned() -> None:
    sample = Sample((Turn("user", "Hello"), Turn("assistant", "Hi!")))
    tokens, learned = encode(_TOKENIZER, sample)
    kept = [token for token, wanted in zip(tokens, learned, strict=True) if wanted]
    assert _TOKENIZER.decode(kept, skip_special_tokens=False) == "Hi!<|im_end|>"
