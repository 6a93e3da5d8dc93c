"""Blocks of calls as models write them: the order of keys, ids, what is dropped or added around a call, at any cut."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from engine.bundle.answer_format import ID, NAME, NUMBER, CallFormat, LiteralArguments
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import MAX_NAME_CHARACTERS, CallBegin, CallReader
from server.generation.growing_text import MAX_PENDING_CHARACTERS, Ended, GrowingText
from tests.call_formats import CODER, HERMES, JSON, LLAMA, MISTRAL, cuts

WITH_ID = CallFormat('{"name": "', '", "arguments": ', JSON, f', "id": "{ID}"}}', "<calls>[", ", ", "]</calls>")
BY_KEY = CallFormat('{"', '": ', JSON, "}", "<calls>", "; ", "</calls>")
OTHER_KEYS = CallFormat('<call>{"function": "', '", "input": ', JSON, "}</call>", between="")
IN_FRONT = CallFormat("<call>", f":{ID}<args>", JSON, "</call>", "<calls>", "", "</calls>")
COUNTED = CallFormat(f"<call>{NUMBER}:", "<args>", JSON, "</call>", between="\n")
REPEATED = CallFormat("to=", f'|<f name="{NAME}">', JSON, "</f>", between="|next|")
PYTHON = CallFormat("", "(", LiteralArguments("=", ", ", "'"), ")", "[", ", ", "]")
RAW = CallFormat("", "(", LiteralArguments("=", ", ", "'", is_raw=True), ")", "[", ", ", "]")
SCHEMAS: dict[str, Any] = {"f": {"properties": {"v": {"type": "string"}}}, "g": {}}
Called = tuple[str, Any]


def run(form: CallFormat, pieces: Sequence[str], id_chars: int = 0) -> tuple[list[CallBegin], list[Called], str, bool]:
    """The calls of a block that comes in pieces, what they were begun as, what is left, and whether it was cut."""
    source, begun, texts, is_cut = GrowingText(), list[CallBegin](), list[str](), False
    reader = CallReader(source, SCHEMAS, id_chars)
    steps = reader.block(form)
    for number, piece in enumerate([*pieces, ""]):
        source.text += piece
        source.is_last = number == len(pieces)
        try:
            while (part := next(steps)) is not None:
                if isinstance(part, CallBegin):
                    assert part.index == len(begun)
                    begun.append(part)
                    texts.append("")
                if isinstance(part, CallArguments):
                    assert part.index == len(begun) - 1
                    texts[-1] += part.text
        except (StopIteration, Ended) as end:
            is_cut, rest = isinstance(end, Ended), "".join(pieces[number + 1 :])
            break
    assert reader.calls == len(begun)
    return (
        begun,
        list(zip([each.name for each in begun], map(json.loads, texts), strict=True)),
        source.text + rest,
        is_cut,
    )


def check(form: CallFormat, text: str, called: list[Called], left: str = "") -> None:
    """At any cut these are the calls, and this is left."""
    for pieces in cuts(text):
        _, found, rest, _ = run(form, pieces)
        assert (found, rest) == (called, left)
        assert all("" not in (each.id, each.name) for each in run(form, pieces)[0])


F, G = ("f", {"v": 1}), ("g", dict[str, Any]())
TEXT = ("f", {"v": "1"})
OBJECTS = [
    (HERMES, '<tool_call>\n{"name": "f", "arguments": {"v": 1}}\n</tool_call> and', [F], " and"),
    (HERMES, '<tool_call>{"arguments":{"v":1},"name":"f"}</tool_call> and', [F], " and"),
    (HERMES, '<tool_call> { "name" : "f" , "parameters" : { "v" : 1 } } </tool_call>', [F], ""),
    (HERMES, '<tool_call>{"x": [1, "}"], "tool_name": "f", "arguments": {"v": 1}, "y": {"z": 2}}</tool_call>', [F], ""),
    (HERMES, '<tool_call>{"name": "f"}</tool_call>', [("f", {})], ""),
    (HERMES, '<tool_call>{"name": "f", "arguments": null}</tool_call>', [("f", {})], ""),
    (HERMES, '<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>', [("f", {})], ""),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"v": 1}}}\n</tool_call> and', [F], " and"),
    (HERMES, '<tool_call>{"name": "f", "arguments": {"v": 1}} so.</tool_call> and', [F], " and"),
    (HERMES, '<tool_call>{"name": "f\\u0061", "arguments": {}}</tool_call>', [("fa", {})], ""),
    (OTHER_KEYS, '<call>{"function": "f", "input": {"v": 1}}</call>', [F], ""),
    (OTHER_KEYS, '<call>{"name": "f", "arguments": {"v": 1}}</call> <call>', [F], " <call>"),  # another block
    (OTHER_KEYS, '<call>{"input": {"v": 1}, "function": "f"}</call>', [F], ""),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"v": 1}}, {"name": "g"}] and', [F, G], " and"),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"v": 1}} {"name": "g"}]', [F, G], ""),
    (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {"v": 1}}, 5] and', [F], ", 5] and"),
    (LLAMA, '{"name": "f", "parameters": {"v": 1}}; {"name": "g", "parameters": {}} and', [F, G], " and"),
    (LLAMA, '{"name": "f", "parameters": {"v": 1}}\n{"name": "g", "parameters": {}}', [F, G], ""),
    (BY_KEY, '<calls>{"f": {"v": 1}}; {"g": {}}</calls> and', [F, G], " and"),
    (BY_KEY, '<calls>{"f": {"v": 1}} so </calls> and', [F], " and"),
    (BY_KEY, '<calls>{"name": "f", "arguments": {"v": 1}}</calls>', [F], ""),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "called", "left"), OBJECTS)
def test_calls_that_are_json(form: CallFormat, text: str, called: list[Called], left: str) -> None:
    check(form, text, called, left)


@pytest.mark.parametrize(
    "inside",
    [
        '"f"',
        "{}",
        '{"arguments": {}}',
        '{"name": ""}',
        '{"name": 5}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "x"}',
        '{"name", "f"}',
        '{"name" = "f"}',
        '{name: "f"}',
        '{"": {"v": 1}, "name": "f"}',
        '{5: 1, "name": "f"}',
        '{"name": "f", "x": }',
        '{"name": "f"</tool_call>',
        '{"name": "f",, "x": 1 2}',
    ],
)
def test_what_is_no_call_is_left(inside: str) -> None:
    text = f"<tool_call>{inside}</tool_call>"
    for pieces in cuts(text):
        assert run(HERMES, pieces)[1:3] == ([], text)


CALLS = [
    (CODER, "<tool_call>\n<function=f>\n<parameter=v>\n1\n</parameter>\n</function>\n</tool_call>!", [TEXT], "!"),
    (CODER, "<tool_call><function=g><parameter=v>1</parameter></function></tool_call>", [("g", {"v": 1})], ""),
    (CODER, "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call>", [G], "\n<tool_call>"),
    (IN_FRONT, '<calls><call>f:1<args>{"v": 1}</call><call>g:2<args>{}</call></calls> and', [F, G], " and"),
    (IN_FRONT, '<calls> <call> f : 1 <args> {"v": 1} so</call> so </calls> and', [F], " and"),
    (IN_FRONT, "<calls><call>f g:1<args>{}</call></calls>", [], "<calls><call>f g:1<args>{}</call></calls>"),
    (IN_FRONT, "<calls>f", [], "<calls>f"),
    (COUNTED, '<call>0:f<args>{"v": 1}</call>\n<call>', [F], "\n<call>"),
    (REPEATED, 'to=f|<f name="f">{"v": 1}</f>|next|to=g|<f name="g">{}</f>', [F, G], ""),
    (PYTHON, "[f(v=1), g()] and", [F, G], " and"),
    (RAW, "[f(v='it's'), g(v='b')] and", [("f", {"v": "it's"}), ("g", {"v": "b"})], " and"),
    (PYTHON, "[f(v=1)g()] and", [F], "g()] and"),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "called", "left"), CALLS)
def test_calls_with_a_literal_behind_the_name(form: CallFormat, text: str, called: list[Called], left: str) -> None:
    check(form, text, called, left)


def test_ids_are_those_of_the_model_and_differ() -> None:
    entry = '{{"name": "f", "arguments": {{}}, "id": "{}"}}'
    text = f"<calls>[{entry.format('a1')}]</calls>"
    for pieces in cuts(text):
        (call,) = run(WITH_ID, pieces, id_chars=9)[0]
        assert len(call.id) == 9  # the arguments went out before the id came
    first = '{{"id": "{}", "name": "f", "arguments": {{}}}}'
    text = f"<calls>[{first.format('a1')}, {first.format('b2')}, {first.format('a1')}, {first.format('')}]</calls>"
    for id_chars, length in ((0, 29), (9, 9)):
        one, two, *own = (call.id for call in run(WITH_ID, [text], id_chars)[0])
        assert (one, two) == ("a1", "b2")
        assert [len(each) for each in own] == [length, length] and own[0] != own[1]
    assert [call.id for call in run(IN_FRONT, ["<calls><call>f:c.7<args>{}</call></calls>"])[0]] == ["c.7"]
    text = '<calls>[{"id": 5, "name": "f"}, {"name": "g", "id": "z"}]</calls>'
    begun = run(WITH_ID, [text])[0]
    assert begun[0].id.startswith("call_") and begun[1].id == "z"


def test_what_is_dropped_has_no_bound() -> None:
    pieces = ['<tool_call>{"name": "f", "arguments": {}}', *["x" * 1000] * (MAX_PENDING_CHARACTERS // 1000 + 2)]
    assert run(HERMES, [*pieces, "\n</tool", "_call> and"])[1:] == ([("f", {})], " and", False)


def test_a_name_has_a_bound() -> None:
    for length in (MAX_NAME_CHARACTERS - 1, MAX_NAME_CHARACTERS):
        text = f"<calls><call>{'n' * length}:1<args>{{}}</call></calls>"
        begun = run(IN_FRONT, [text])[0]
        assert [len(call.name) for call in begun] == ([length] if length < MAX_NAME_CHARACTERS else [])


def test_what_was_cut_is_told() -> None:
    whole = '<tool_call>\n{"name": "f", "arguments": {"v": "x'
    source = GrowingText()
    source.text = whole
    reader = CallReader(source, {}, 0)
    steps = reader.block(HERMES)
    begin, arguments, waits = next(steps), next(steps), next(steps)
    assert isinstance(begin, CallBegin) and arguments == CallArguments(0, '{"v": "x') and waits is None
    source.is_last = True
    with pytest.raises(Ended):
        next(steps)
    assert reader.calls == 1
