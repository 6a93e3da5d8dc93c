"""Calls of every style: what the grammar allows is what the parser reads, at any cut."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from engine.bundle.answer_format import (
    NAME,
    NUMBER,
    AnswerFormat,
    CallFormat,
    LiteralArguments,
    Markers,
    TaggedArguments,
)
from engine.demo.location import demo_folder
from engine.grammar.call_rules import Literals
from engine.grammar.compiler import serialised, unforced
from engine.grammar.masks import control_tokens, load_tokenizer, new_matcher
from engine.grammar.spec import CalledTool, GrammarSpec, Regex, ToolCalls
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.parsing import AnswerParser
from tests.call_formats import CODER, HERMES, JSON, LLAMA, MISTRAL, PHI, answers, cuts, written

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
SCHEMAS = {"weather": CITY, "ping": {"type": "object"}}
TOOLS = (CalledTool("weather", json.dumps(CITY), is_lenient=False), CalledTool("ping"))
PLACE = 'Par"}is </parameter> ]'
KIMI = CallFormat("<|call|>functions.", f":{NUMBER}<|args|>", JSON, "<|/call|>", "<|calls|>", "", "<|/calls|>")
HARMONY = CallFormat(" to=functions.", "<|channel|>json<|message|>", JSON, "")
KEYS = TaggedArguments("<arg_key>", {"string": "</arg_key><arg_value>"}, "</arg_value>")
GLM = CallFormat("<tool_call>", "", KEYS, "</tool_call>", between="")
TO = CallFormat(" to=", f'<|message|><invoke name="{NAME}">', KEYS, "</invoke>", between="<|eom|><|start|>assistant")
PYTHON = CallFormat("", "(", LiteralArguments("=", ", ", "'"), ")", "<|tools|>[", ", ", "]<|/tools|>")
QUOTED = CallFormat("<|tool>call:", "{", LiteralArguments(":", ",", '<|"|>'), "}<tool|>", between="")
STYLES = {
    "hermes": (HERMES, written(HERMES, [("weather", {"city": PLACE}), ("ping", {})])),
    "mistral": (MISTRAL, written(MISTRAL, [("weather", {"city": PLACE}), ("ping", {})])),
    "phi": (PHI, written(PHI, [("weather", {"city": PLACE}), ("ping", {})])),
    "llama": (LLAMA, written(LLAMA, [("weather", {"city": PLACE}), ("ping", {})])),
    "coder": (CODER, written(CODER, [("weather", {"city": PLACE}), ("ping", {})])),
    "kimi": (KIMI, written(KIMI, [("weather", {"city": PLACE}), ("ping", {})]).replace(NUMBER, "0")),
    "glm": (GLM, written(GLM, [("weather", {"city": PLACE}), ("ping", {})])),
    "to": (
        TO,
        TO.between.join(
            written(TO, [one]).replace(NAME, one[0]) for one in [("weather", {"city": PLACE}), ("ping", {})]
        ),
    ),
    "python": (PYTHON, f"<|tools|>[weather(city={PLACE!r}), ping()]<|/tools|>"),
    "quoted": (QUOTED, f'<|tool>call:weather{{city:<|"|>{PLACE}<|"|>}}<tool|><|tool>call:ping{{}}<tool|>'),
}
DAMAGE = ["", *"{}[]\"',:<>/\\()= \n", "</", '{"arguments": {"x": 1}, "name": "g"}', "null"]
EXPECTED = [("weather", {"city": PLACE}), ("ping", {})]
FORMATS = pytest.mark.parametrize("style", STYLES)


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return load_tokenizer(demo_folder() / "tokenizer.json", 3072, [2, 0])


def read(answer: AnswerFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    splitter = AnswerParser(answer, schemas=SCHEMAS)
    found = [piece for text in pieces for piece in splitter.feed(text)] + splitter.feed("", is_last=True)
    text = "".join(piece for piece in found if isinstance(piece, str))
    calls = {piece.index: [piece.name, ""] for piece in found if isinstance(piece, CallBegin)}
    for piece in found:
        if isinstance(piece, CallArguments):
            calls[piece.index][1] += piece.text
    return text, [(name, arguments) for name, arguments in calls.values()]


@FORMATS
def test_calls_are_read_at_any_cut(style: str) -> None:
    form, text = STYLES[style]
    once = read(answers(form), [text])
    assert (once[0], [(name, json.loads(given)) for name, given in once[1]]) == ("", EXPECTED)
    for pieces in cuts(text):
        assert read(answers(form), pieces) == once


@given(st.sampled_from(sorted(STYLES)), st.data())
def test_what_is_nearly_calls_is_read_alike_at_any_cut(style: str, data: st.DataObject) -> None:
    form, text = STYLES[style]
    for _ in range(data.draw(st.integers(1, 3))):
        place, dropped = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 6))
        text = text[:place] + data.draw(st.sampled_from(DAMAGE)) + text[place + dropped :]
    once = read(answers(form), [text])
    for size in (1, 2, 5):
        assert read(answers(form), [text[start : start + size] for start in range(0, len(text), size)]) == once


@pytest.mark.parametrize("style", ["hermes", "mistral", "kimi", "coder", "glm"])
def test_strings_come_as_they_are_written(style: str) -> None:
    form, text = STYLES[style]
    splitter = AnswerParser(answers(form), schemas=SCHEMAS)
    start = text.index("Par") + 1
    before = splitter.feed(text[:start])
    assert [type(piece) for piece in before[:2]] == [CallBegin, CallArguments]
    assert splitter.feed("abc def") == [CallArguments(0, "abc def")]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (MISTRAL, "[TOOL_CALLS] nothing"),
        (MISTRAL, "see [TOOL_CALL and [1, 2]"),
        (PHI, "<|tool_call|>what<|/tool_call|> now"),
        (LLAMA, '{"a": 1} is JSON'),
        (LLAMA, '{"age": 3, "name": "Ada"}'),
        (LLAMA, '{"name": "Ada", "parameters": {}}'),
        (CallFormat('{"', '": ', JSON, "}"), '{"person": {"name": "Ada"}}'),
        (LLAMA, 'say {"name": "f", "parameters": {}}'),
        (HERMES, '{"name": "f", "arguments": {}}'),
        (CODER, "<tool_call> is a tag, <function=x is a part of it"),
        (GLM, "<tool_call>two words</tool_call>"),
        (HARMONY, "route the mail to=functions. Then wait"),
    ],
)
def test_what_is_no_call_stays_text(form: CallFormat, text: str) -> None:
    for pieces in cuts(text):
        assert read(answers(form), pieces) == (text, [])


def test_text_around_calls() -> None:
    ping = [("ping", {})]
    assert read(answers(MISTRAL), [f"Well. {written(MISTRAL, ping)}"]) == ("Well.", [("ping", "{}")])
    assert read(answers(PHI), [f"{written(PHI, ping)}\n bye"]) == ("bye", [("ping", "{}")])
    assert read(answers(CODER), [f"I look.\n{written(CODER, ping)}"]) == ("I look.", [("ping", "{}")])
    further = CallFormat('{"name": "', '", "parameters": ', JSON, "}", "<|python_tag|>", "; ")
    both = AnswerFormat(calls=LLAMA, also=(further,))
    assert read(both, [f"<|python_tag|>{written(LLAMA, ping)}"]) == ("", [("ping", "{}")])
    unusual = '{"type": "function", "name": "ping", "parameters": {"a": 1}}'
    assert read(both, [unusual]) == ("", [("ping", '{"a": 1}')])


def test_what_is_around_a_text_is_no_part_of_it() -> None:
    answer = AnswerFormat(
        content=Markers("<|channel|>final<|message|>", "<|end|>"), restart="<|start|>assistant", calls=HARMONY
    )
    text = "<|start|>assistant<|channel|>final<|message|>Hello, you.<|end|>"
    for pieces in cuts(text):
        assert read(answer, pieces) == ("Hello, you.", [])
    called = '<|start|>assistant to=functions.ping<|channel|>json<|message|>{"a": 1}'
    for pieces in cuts(called):
        assert read(answer, pieces) == ("", [("ping", '{"a": 1}')])


def test_what_the_prompt_has_begun_is_read_with_the_answer() -> None:
    answer = AnswerFormat(
        content=Markers(">>>all", ""), prefill=">>>", calls=CallFormat(">>>", "\n", JSON, "", between="")
    )
    for text, expected in (
        ("all\nHello", ("Hello", [])),
        ('ping\n{"a": 1}>>>weather\n{}', ("", [("ping", '{"a": 1}'), ("weather", "{}")])),
    ):
        for pieces in cuts(text):
            splitter = AnswerParser(answer, prefilled=">>>")
            found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.feed("", is_last=True)
            said = "".join(part for part in found if isinstance(part, str))
            names = [part.name for part in found if isinstance(part, CallBegin)]
            assert (said, names) == (expected[0], [name for name, _ in expected[1]])


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        ("17", {"type": "string"}, "17"),
        ("17", {"type": "integer"}, 17),
        ("17", {}, 17),
        ("True", {"type": "boolean"}, True),
        ("null", {"type": ["string", "null"]}, None),
        ("5", {"type": ["string", "null"]}, "5"),
        ("{'a': [1, None]}", {"type": "object"}, {"a": [1, None]}),
        ('{"a": "b"}', {"type": "string"}, '{"a": "b"}'),
        ("plain words", {}, "plain words"),
        ("3", {"anyOf": [{"type": "number"}, {"type": "string"}]}, 3),
        ("x", {"$ref": "#/$defs/word"}, "x"),
        ("7", {"$ref": "#/$defs/word"}, "7"),
        ("NaN", {"type": "number"}, "NaN"),
        ("a\n</parameter>\nb", {"type": "string"}, "a\n</parameter>\nb"),
    ],
)
def test_the_type_of_a_value_comes_from_the_schema(value: str, schema: object, expected: object) -> None:
    schemas = {"f": {"properties": {"v": schema}, "$defs": {"word": {"type": "string"}}}}
    text = f"<tool_call>\n<function=f>\n<parameter=v>\n{value}\n</parameter>\n</function>\n</tool_call>"
    for pieces in cuts(text):
        splitter = AnswerParser(answers(CODER), schemas=schemas)
        found = [part for piece in pieces for part in splitter.feed(piece)] + splitter.feed("", is_last=True)
        given = "".join(part.text for part in found if isinstance(part, CallArguments))
        assert json.loads(given) == {"v": expected}


def test_ids_have_the_length_that_the_template_demands() -> None:
    for chars, length in ((0, 29), (9, 9)):
        splitter = AnswerParser(AnswerFormat(calls=HERMES, id_chars=chars))
        begun = [piece for piece in splitter.feed(STYLES["hermes"][1]) if isinstance(piece, CallBegin)]
        assert [len(call.id) for call in begun] == [length, length] and begun[0].id != begun[1].id


def grammar(
    tokenizer: LLTokenizer, form: CallFormat, is_forced: bool, most: int = 0, otherwise: Regex | None = None
) -> str:
    controls = control_tokens(tokenizer)
    calls = ToolCalls(form, TOOLS, is_forced, most, otherwise, answers(form).mark(form))
    return unforced(serialised(GrammarSpec(calls), Literals(controls)), tuple(controls))


def accepts(tokenizer: LLTokenizer, grammar: str, text: str) -> bool:
    matcher: LLMatcher = new_matcher(tokenizer, grammar)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@FORMATS
def test_forced_calls_are_those_the_parser_reads(tokenizer: LLTokenizer, style: str) -> None:
    form, both = STYLES[style]
    forced = grammar(tokenizer, form, is_forced=True)
    assert accepts(tokenizer, forced, both)
    for wrong in ("", "Hello", both.replace("city", "town"), both.replace("weather", "climate"), both[:-2]):
        assert not accepts(tokenizer, forced, wrong), wrong


@FORMATS
def test_at_most_one_call(tokenizer: LLTokenizer, style: str) -> None:
    form, both = STYLES[style]
    assert not accepts(tokenizer, grammar(tokenizer, form, is_forced=True, most=1), both)
    free = grammar(tokenizer, form, is_forced=False, most=1)
    assert accepts(tokenizer, free, "Hello") and not accepts(tokenizer, free, both)


@FORMATS
def test_text_may_come_instead_but_a_call_must_be_right(tokenizer: LLTokenizer, style: str) -> None:
    form, both = STYLES[style]
    free = grammar(tokenizer, form, is_forced=False)
    for fine in ("Hello, how are you?", both):
        assert accepts(tokenizer, free, fine), fine
    assert not accepts(tokenizer, free, both.replace("city", "town"))
    either = grammar(tokenizer, form, is_forced=False, otherwise=Regex("[0-9]+"))
    assert accepts(tokenizer, either, both) and accepts(tokenizer, either, "123")
    assert not accepts(tokenizer, either, "Hello")


def test_a_format_of_one_call_allows_one(tokenizer: LLTokenizer) -> None:
    one = " to=functions.ping<|channel|>json<|message|>{}"
    forced = grammar(tokenizer, HARMONY, is_forced=True)
    assert accepts(tokenizer, forced, one) and not accepts(tokenizer, forced, one + one)


def test_an_unusual_call_behind_a_usual_one_in_a_list() -> None:
    """Each begins to be read where it begins, however the one before it was read."""
    usual, unusual = '{"name": "f", "arguments": {"a": 1}}', '{"arguments": {"b": "}"}, "name": "g"}'
    for calls in ((usual, unusual), (unusual, usual), (unusual, unusual), (usual, unusual, usual)):
        text, found = read(answers(MISTRAL), [f"[TOOL_CALLS][{', '.join(calls)}]"])
        assert text == ""
        assert [name for name, _ in found] == ["f" if call == usual else "g" for call in calls]
