"""Chat templates against transformers' `apply_chat_template`, and what they may not do."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from engine.demo.location import demo_folder
from engine.errors import BundleError, InvalidRequest
from engine.text.prompt import check_options
from engine.text.renderer import ChatTemplate
from engine.text.rendering import RenderTooLong
from tests.engine.tiny_bundle import CHATML, byte_level_tokenizer

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für <einen> Ort & 'mehr'",
            "parameters": {"type": "object", "properties": {"ort": {"type": "string"}}, "required": ["ort"]},
        },
    }
]
CHATS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": 'Grüße, <b>Welt</b> & "alle" 😀'}],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "  hi\n"}],
    "thought": [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\neasy\n</think>\n\n4"},
        {"role": "user", "content": "sure?"},
    ],
    "tool": [
        {"role": "user", "content": "Wetter in Köln?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "weather", "arguments": {"ort": "Köln", "n": 1.5}}}
            ],
        },
        {"role": "tool", "content": '{"grad": 21}'},
    ],
}
TEMPLATES = {
    "chatml": CHATML,
    "brackets": (
        "{{ bos_token }}{%- for message in messages %}\n"
        "    {%- if message['role'] == 'system' %}\n        {{- '<<SYS>>' + message['content'] | trim + '<</SYS>>' }}\n"
        "    {%- elif message['role'] == 'user' %}\n        {{- '[INST] ' + message['content'] + ' [/INST]' }}\n"
        "    {%- else %}\n        {{- ' ' + message['content'] + eos_token }}\n    {%- endif %}\n{%- endfor %}"
    ),
    "hermes": (
        "{%- if tools %}<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}</tools>\n{% endif %}"
        "{%- set ns = namespace(last=messages|length - 1) %}\n"
        "{%- for message in messages %}\n"
        "    {%- if message.role == 'tool' %}{{- '<tool_response>\\n' + message.content + '\\n</tool_response>' }}\n"
        "    {%- elif message.tool_calls %}\n"
        "        {%- for call in message.tool_calls %}\n"
        "            {%- set call = call.function %}\n"
        '            {{- \'<tool_call>\\n{"name": "\' }}{{ call.name }}{{- \'", "arguments": \' }}'
        "{{- call.arguments | tojson }}{{- '}\\n</tool_call>' }}\n"
        "        {%- endfor %}\n"
        "    {%- elif '</think>' in message.content %}\n"
        "        {{- message.content.split('</think>')[-1].lstrip('\\n') }}\n"
        "    {%- else %}{{- message.role + ': ' + message.content }}\n    {%- endif %}\n"
        "    {%- if loop.index0 == ns.last %}{{- '(last)' }}{% continue %}{% endif %}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{- 'assistant: ' }}\n"
        "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n' }}"
        "{%- endif %}{%- endif %}"
    ),
    "training": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\n{% endgeneration %}"
        "{% else %}\n  {% if tools is not none and loop.first %}{{ tools | tojson(indent=2) }}{% endif %}\n"
        "{{ m.content | upper }}{% if documents is not none %}docs{% endif %}{% endif %}{% endfor %}"
    ),
}
REFERENCE = PreTrainedTokenizerFast(
    tokenizer_object=byte_level_tokenizer(), bos_token="<|endoftext|>", eos_token="<|im_end|>"
)
NAMES = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "documents": None}


def same_as_reference(template: str, chat: str, options: dict[str, Any], tools: list[dict[str, Any]] | None) -> None:
    """Render with both and compare."""
    expected = REFERENCE.apply_chat_template(
        CHATS[chat], tools=tools, chat_template=template, tokenize=False, **options
    )
    assert ChatTemplate(template).render(CHATS[chat], tools, {**NAMES, **options}, 100_000) == expected


@pytest.mark.parametrize(("template", "chat"), list(itertools.product(TEMPLATES, CHATS)))
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_renders_as_transformers_does(template: str, chat: str, tools: list[dict[str, Any]] | None) -> None:
    for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "enable_thinking": False}):
        same_as_reference(TEMPLATES[template], chat, options, tools)
    same_as_reference(TEMPLATES[template], chat, {"add_generation_prompt": True, "enable_thinking": False}, tools)


@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["plain", "tools"])
def test_the_demo_models_template_renders_as_transformers_does(chat: str, tools: list[dict[str, Any]] | None) -> None:
    separate = demo_folder() / "chat_template.jinja"
    if separate.is_file():
        template = separate.read_text(encoding="utf-8")
    else:
        template = json.loads((demo_folder() / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    same_as_reference(template, chat, {"add_generation_prompt": True}, tools)


def test_the_date_comes_from_the_clock() -> None:
    text = ChatTemplate("{{ strftime_now('%Y') | length }}").render([], None, {}, 10)
    assert text == "4"


def test_a_template_refuses_in_its_own_words() -> None:
    template = ChatTemplate("{% if messages | length > 1 %}{{ raise_exception('roles must alternate') }}{% endif %}")
    assert template.render(CHATS["one"], None, {}, 10) == ""
    with pytest.raises(InvalidRequest, match="roles must alternate") as refused:
        template.render(CHATS["tool"], None, {}, 10)
    assert refused.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[9].content }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__base__ }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ [1, 2] | tojson(indent='a' * 3, separators=1) }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ '%d' | format('a') }}",
    ],
)
def test_what_a_template_trips_over_is_an_invalid_request(source: str) -> None:
    with pytest.raises(InvalidRequest):
        ChatTemplate(source).render(CHATS["one"], None, {}, 1000)


def test_the_output_is_bounded_in_characters_and_in_time() -> None:
    template = ChatTemplate("{% for i in range(1000) %}{% for j in range(1000) %}xxxx{% endfor %}{% endfor %}")
    with pytest.raises(RenderTooLong, match="1000 characters"):
        template.render([], None, {}, 1000)
    ticks = itertools.count(0.0, 0.1)
    slow = ChatTemplate("{% for i in range(1000) %}{{ i }}{% endfor %}", clock=lambda: next(ticks))
    with pytest.raises(InvalidRequest, match="5 s"):
        slow.render([], None, {}, 10**9)


@pytest.mark.parametrize("source", ["{% if %}", "{{ ", "{% generation %}x", "{{ 'x' | no_such_filter }}"])
def test_a_broken_template_is_a_bundle_error(source: str, tmp_path: Path) -> None:
    (tmp_path / "t").write_text(source)
    with pytest.raises(BundleError):
        ChatTemplate.load(tmp_path / "t")
    with pytest.raises(BundleError, match="nowhere"):
        ChatTemplate.load(tmp_path / "nowhere")


def test_options_are_an_allow_list() -> None:
    assert check_options({"enable_thinking": False}) == {"enable_thinking": False}
    for options, param in (
        ({"tokenize": True}, "chat_template_kwargs.tokenize"),
        ({"chat_template": "{{ 1 }}"}, "chat_template_kwargs.chat_template"),
        ({"messages": []}, "chat_template_kwargs.messages"),
        ({"enable_thinking": "yes"}, "chat_template_kwargs.enable_thinking"),
        ({"reasoning_effort": "x" * 65}, "chat_template_kwargs.reasoning_effort"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            check_options(options)
        assert refused.value.param == param


def test_a_text_may_be_as_long_as_its_bound() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    chat = [{"role": "user", "content": "abc"}, {"role": "user", "content": "de"}]
    assert template.render(chat, None, {}, 5) == "abcde"
    with pytest.raises(RenderTooLong, match="longer than 4 characters"):
        template.render(chat, None, {}, 4)
