"""How a model writes answers, found from small chat templates of each style."""

import pytest
from msgspec.structs import replace

from engine.bundle.answer_format import (
    ID,
    KEY,
    NUMBER,
    AnswerFormat,
    CallFormat,
    JsonArguments,
    LiteralArguments,
    Markers,
    TaggedArguments,
)
from engine.text.answer_finding import find_answer
from engine.text.format_probes import Renderings, probe_requests
from engine.text.format_table import end_marks
from engine.text.renderer import ChatTemplate

JSON = JsonArguments()
KINDS = ("string", "integer", "number", "boolean", "null", "object", "array")

# A conversation around the part that writes a model's message.
HEAD = """{%- if tools %}<|system|>{{ tools | tojson }}<|end|>{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'assistant' -%}<|assistant|>"""
TAIL = """<|end|>
{%- else -%}<|{{ message.role }}|>{{ message.content }}<|end|>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""


def template(body: str) -> str:
    """A template that writes a model's message like that, without white space around its parts."""
    return (HEAD + body + TAIL).replace("{{ ", "{{- ").replace(" }}", " -}}")


def calls(opening: str, call: str, between: str, closing: str) -> str:
    """The calls of a message, between what opens and what closes them."""
    start = f"{{{{ {opening!r} }}}}{{% for t in message.tool_calls %}}{{%- set f = t.function -%}}"
    separator = f"{{%- if not loop.first -%}}{{{{ {between!r} }}}}{{%- endif -%}}"
    end = f"{{%- endfor -%}}{{{{ {closing!r} }}}}{{%- endif -%}}"
    return "{{ message.content }}{%- if message.tool_calls -%}" + start + separator + call + end


ARGUMENTS = "{{ f.arguments | tojson }}"
TAGS = (
    "{{ '<function=' + f.name + '>' }}{%- for k, v in f.arguments.items() -%}"
    "{{ '<p=' + k + '>' }}{{ v if v is string else (v | tojson) }}{{ '</p>' }}{%- endfor -%}{{ '</function>' }}"
)
PAIRS = TAGS.replace("'<p=' + k + '>'", "'<k>' + k + '</k><v>'").replace("</p>", "</v>")
TYPED = TAGS.replace("'<p=' + k + '>'", "'<p=' + k + (' s>' if v is string else ' j>')")
NESTED = TAGS.replace("'<p=' + k + '>'", "'<' + k + '>'").replace("'</p>'", "'</' + k + '>'")
PYTHON = (
    "{{ f.name + '(' }}{%- for k, v in f.arguments.items() -%}{{ ', ' if not loop.first else '' }}"
    "{{ k + '=' + (\"'\" + v + \"'\" if v is string else (v | string)) }}{%- endfor -%}{{ ')' }}"
)


def tags(before: str, assign: str, after: str) -> TaggedArguments:
    return TaggedArguments(before, dict.fromkeys(KINDS, assign), after)


STYLES: dict[str, tuple[str, CallFormat]] = {
    "an object in a call that is JSON": (
        calls(
            "", '{{ \'<call>{"name": "\' + f.name + \'", "arguments": \' }}' + ARGUMENTS + "{{ '}</call>' }}", "\n", ""
        ),
        CallFormat('<call>{"name": "', '", "arguments": ', JSON, "}</call>", between="\n"),
    ),
    "a list with ids": (
        calls(
            "[CALLS][",
            '{{ \'{"n": "\' + f.name + \'", "a": \' }}' + ARGUMENTS + "{{ ', \"id\": \"' + t.id + '\"}' }}",
            ", ",
            "]",
        ),
        CallFormat('{"n": "', '", "a": ', JSON, f', "id": "{ID}"}}', "[CALLS][", ", ", "]"),
    ),
    "a name that is a key": (
        calls("<calls>[", "{{ '{\"' + f.name + '\": ' }}" + ARGUMENTS + "{{ '}' }}", ", ", "]</calls>"),
        CallFormat('{"', '": ', JSON, "}", "<calls>[", ", ", "]</calls>"),
    ),
    "a name in front of an object": (
        calls(
            "<all>",
            "{{ '<one>functions.' + f.name + ':' + loop.index0 | string + '<args>' }}" + ARGUMENTS + "{{ '</one>' }}",
            "",
            "</all>",
        ),
        CallFormat("<one>functions.", f":{NUMBER}<args>", JSON, "</one>", "<all>", "", "</all>"),
    ),
    "parameters of XML": (
        calls("", TAGS, "\n", ""),
        CallFormat("<function=", ">", tags("<p=", ">", "</p>"), "</function>", between="\n"),
    ),
    "keys and values": (
        calls("", PAIRS, "", ""),
        CallFormat("<function=", ">", tags("<k>", "</k><v>", "</v>"), "</function>", between=""),
    ),
    "values that say whether they are strings": (
        calls("", TYPED, "", ""),
        CallFormat(
            "<function=",
            ">",
            TaggedArguments("<p=", {kind: " s>" if kind == "string" else " j>" for kind in KINDS}, "</p>"),
            "</function>",
            between="",
        ),
    ),
    "tags named like keys": (
        calls("", NESTED, "", ""),
        CallFormat("<function=", ">", tags("<", ">", f"</{KEY}>"), "</function>", between=""),
    ),
    "calls of Python": (
        calls("<tools>[", PYTHON, ", ", "]</tools>"),
        CallFormat("", "(", LiteralArguments("=", ", ", "'", is_raw=True), ")", "<tools>[", ", ", "]</tools>"),
    ),
}


def found(source: str) -> AnswerFormat:
    chat = ChatTemplate(source)
    requests = probe_requests({"bos_token": "<s>", "eos_token": "</s>"})
    return find_answer(Renderings.of([chat.answer(request) for request in requests]), source)


@pytest.mark.parametrize("style", STYLES)
def test_calls_are_found(style: str) -> None:
    body, expected = STYLES[style]
    assert found(template(body)).calls == expected


VALUE = """{%- macro value(v) -%}
{%- if v is mapping -%}{%- for k, w in v.items() -%}<{{ k }}>{{ value(w) }}</{{ k }}>{%- endfor -%}
{%- elif v is string -%}{{ v }}
{%- elif v is iterable -%}{%- for w in v -%}<item>{{ value(w) }}</item>{%- endfor -%}
{%- else -%}{{ v | tojson }}{%- endif -%}{%- endmacro -%}"""


def test_objects_and_lists_that_are_nested_tags() -> None:
    style = calls("", NESTED.replace("v if v is string else (v | tojson)", "value(v)"), "", "")
    written = found(VALUE + template(style)).calls
    assert written is not None and isinstance(written.arguments, TaggedArguments)
    assert (written.arguments.item, written.arguments.after) == ("item", f"</{KEY}>")


def test_what_is_around_a_string_with_signs_of_xml() -> None:
    wrapped = TAGS.replace(
        "v if v is string", "'<![CDATA[' + v + ']]>' if v is string and '<' in v else v if v is string"
    )
    written = found(template(calls("", wrapped, "", ""))).calls
    assert written is not None
    assert written.arguments == replace(tags("<p=", ">", "</p>"), wrap=Markers("<![CDATA[", "]]>"))


def test_a_model_that_is_shown_no_tools_makes_no_calls() -> None:
    body = STYLES["parameters of XML"][0]
    assert found(template(body).replace("{{- tools | tojson -}}", "")).calls is None
    assert found("{{ messages[0].content }}") == AnswerFormat()


def test_a_template_that_renders_no_calls_is_known_by_what_else_it_writes() -> None:
    body = template("{{ message.content }}")
    assert found(body).calls is None
    granite = found(body.replace("<|system|>", "<|start_of_role|>available_tools")).calls
    assert granite is not None and granite.opening == "<|tool_call|>["


def test_names_without_arguments_are_no_calls() -> None:
    """A call is written, but how its arguments would be is not to be found."""
    body = "{{ message.content }}{%- for t in message.tool_calls -%}{{ t.function.name }};{%- endfor -%}"
    assert found(template(body)).calls is None


def test_a_template_of_one_call_a_turn() -> None:
    body = template(STYLES["parameters of XML"][0]).replace("message.tool_calls %}", "message.tool_calls[:1] %}")
    calls = found(body).calls
    assert calls is not None and calls.between is None and calls.end == "</function>"


def test_ids_and_arguments_that_a_template_demands() -> None:
    body = STYLES["a list with ids"][0]
    strict = "{%- if t.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif -%}{%- set f"
    assert found(template(body.replace("{%- set f", strict))).id_chars == 9
    assert found(template(body)).id_chars == 0
    text = found(template(body.replace(ARGUMENTS, "{{ '' + f.arguments }}")))
    assert text.has_text_arguments and text.calls == STYLES["a list with ids"][1]


THOUGHT = "{%- if message.FIELD -%}{{ 'OPEN' + message.FIELD + 'CLOSE' }}{%- endif -%}"


@pytest.mark.parametrize(
    ("field", "opening", "closing"),
    [
        ("reasoning_content", "<think>", "</think>"),
        ("reasoning", "<seed:think>", "</seed:think>"),
        ("thinking", "<|channel|>analysis<|message|>", "<|close|>"),
        ("thought", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ],
)
def test_reasoning_is_found(field: str, opening: str, closing: str) -> None:
    thought = THOUGHT.replace("FIELD", field).replace("OPEN", opening).replace("CLOSE", closing)
    body = template(thought + STYLES["parameters of XML"][0])
    answer = found(body)
    assert (answer.reasoning, answer.thoughts) == (Markers(opening, closing), field)
    assert answer.calls == STYLES["parameters of XML"][1]
    opened = found(body.replace("<|assistant|>{%- endif -%}", f"<|assistant|>{opening}{{%- endif -%}}"))
    assert opened.reasoning == Markers(opening, closing)


@pytest.mark.parametrize("condition", ["", " and enable_thinking"])
def test_reasoning_that_is_a_part_of_the_content(condition: str) -> None:
    """Some templates write it only where thinking is on."""
    thought = "{%- if part.type == 'thinking'CONDITION -%}{{ '<muse>' + part.thinking + '</muse>' }}{%- endif -%}"
    parts = "{%- for part in message.content -%}" + thought + "{{ part.text }}{%- endfor -%}"
    body = "{%- if message.content is string -%}{{ message.content }}{%- else -%}" + parts + "{%- endif -%}"
    answer = found(template(body.replace("CONDITION", condition)))
    assert (answer.reasoning, answer.thoughts) == (Markers("<muse>", "</muse>"), "")


def test_a_turn_that_nothing_but_its_reasoning_begins() -> None:
    """A message of calls has none."""
    style, expected = STYLES["calls of Python"]
    said = "{%- if not message.tool_calls -%}{{ '<muse>' + (message.reasoning or '') + '</muse>' }}{%- endif -%}"
    source = template(said + style).replace("<|assistant|>{%- endif -%}", "<muse>{%- endif -%}")
    answer = found(source.replace("<|assistant|>", "").replace("<|end|>", ""))
    assert (answer.reasoning, answer.calls) == (Markers("<muse>", "</muse>"), expected)


def test_a_sentence_of_the_prompt_that_begins_the_reasoning() -> None:
    """Where thinking is off the prompt goes straight to the answer."""
    sentence = "Here are my reasoning steps:"
    thought = "{%- if message.thought -%}{{ message.thought + '[BEGIN RESPONSE]' }}{%- endif -%}{{ message.content }}"
    begun = f"{{{{- '[BEGIN RESPONSE]' if enable_thinking is false else '{sentence}' -}}}}"
    source = template(thought).replace("<|assistant|>{%- endif -%}", f"<|assistant|>{begun}{{%- endif -%}}")
    assert found(source).reasoning == Markers(sentence, "[BEGIN RESPONSE]")


def test_reasoning_that_no_message_has_is_told_by_its_markers() -> None:
    assert found("{{ messages[0].content }}<think></think>").reasoning == Markers("<think>", "</think>")
    assert found("{{ messages[0].content }}<think>").reasoning is None


def test_what_is_around_a_text() -> None:
    body = STYLES["parameters of XML"][0].replace("{{ message.content }}", "")
    said = "{%- if message.content -%}{{ '<|text|>' + message.content + '<|/text|>' }}{%- endif -%}"
    answer = found(template(said + body))
    assert answer.content == Markers("<|text|>", "<|/text|>")
    assert answer.calls == STYLES["parameters of XML"][1]


def test_a_turn_in_several_parts() -> None:
    part = "{{ '<|analysis|>' + message.thinking + '<|end|><|start|>assistant' }}"
    body = "{%- if message.thinking -%}" + part + "{%- endif -%}{{ '<|final|>' + message.content }}"
    source = template(body).replace("<|assistant|>", "<|start|>assistant")
    answer = found(source)
    assert answer.reasoning == Markers("<|analysis|>", "<|end|>")
    assert (answer.restart, answer.content) == ("<|start|>assistant", Markers("<|final|>", "<|end|>"))
    assert end_marks(source, answer) == []  # it closes a part, not a turn
    assert end_marks(source, None) == ["<|end|>"]
