"""Calls of every format: what the grammar allows is what the parser reads, at any cut."""

import json
from collections.abc import Iterator

import pytest
from llguidance import LLMatcher, LLTokenizer

from engine.demo.location import demo_folder
from engine.grammar.matching import load_tokenizer, new_matcher, special_token
from engine.grammar.source import serialised
from engine.grammar.spec import CalledTool, GrammarSpec, Regex, ToolCalls
from engine.grammar.tool_formats import HERMES, LLAMA, MISTRAL, PHI, TOOL_FORMATS, ToolFormat, find_format
from server.writers.tool_calls import CallArguments, CallBegin, CallSplitter, format_of

CITY = json.dumps({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
TOOLS = (CalledTool("weather", CITY, is_lenient=False), CalledTool("ping"))
PARIS = '{"city": "Par}is</tool_call>"}'
WEATHER, PING = f'{{"name": "weather", "arguments": {PARIS}}}', '{"name": "ping", "arguments": {}}'
LLAMA_WEATHER, LLAMA_PING = (text.replace('"arguments"', '"parameters"') for text in (WEATHER, PING))
BOTH = {
    HERMES: f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{PING}\n</tool_call>",
    MISTRAL: f"[TOOL_CALLS][{WEATHER}, {PING}]",
    PHI: f"<|tool_call|>[{WEATHER}, {PING}]<|/tool_call|>",
    LLAMA: f"{LLAMA_WEATHER}; {LLAMA_PING}",
}
EXPECTED = [("weather", PARIS), ("ping", "{}")]
FORMATS = pytest.mark.parametrize("form", BOTH, ids=lambda form: form.opening)


@pytest.fixture(scope="module")
def tokenizer() -> LLTokenizer:
    return load_tokenizer(demo_folder() / "tokenizer.json", 3072, [2, 0])


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    splitter = CallSplitter(form)
    found = [piece for text in pieces for piece in splitter.feed(text)] + splitter.feed("", is_last=True)
    text = "".join(piece for piece in found if isinstance(piece, str))
    calls = {piece.index: [piece.name, ""] for piece in found if isinstance(piece, CallBegin)}
    for piece in found:
        if isinstance(piece, CallArguments):
            calls[piece.index][1] += piece.text
    return text, [(name, arguments) for name, arguments in calls.values()]


def cuts(text: str) -> Iterator[list[str]]:
    yield [text]
    yield list(text)
    for cut in range(1, len(text)):
        yield [text[:cut], text[cut:]]


@FORMATS
def test_calls_are_read_at_any_cut(form: ToolFormat) -> None:
    for pieces in cuts(BOTH[form]):
        assert read(form, pieces) == ("", EXPECTED)


@FORMATS
def test_arguments_come_as_they_are_written(form: ToolFormat) -> None:
    splitter = CallSplitter(form)
    text = BOTH[form]
    start = text.index(PARIS) + 5
    before = splitter.feed(text[:start])
    assert [type(piece) for piece in before] == [CallBegin, CallArguments]
    assert splitter.feed(text[start : start + 4]) == [CallArguments(0, text[start : start + 4])]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (MISTRAL, "[TOOL_CALLS] nothing"),
        (MISTRAL, "see [TOOL_CALL and [1, 2]"),
        (PHI, "<|tool_call|>what<|/tool_call|> now"),
        (LLAMA, '{"a": 1} is JSON'),
        (LLAMA, 'say {"name": "f", "parameters": {}}'),
        (HERMES, '{"name": "f", "arguments": {}}'),
    ],
)
def test_what_is_no_call_stays_text(form: ToolFormat, text: str) -> None:
    for pieces in cuts(text):
        assert read(form, pieces) == (text, [])


def test_text_around_calls() -> None:
    assert read(MISTRAL, [f"Well. [TOOL_CALLS][{PING}]"]) == ("Well.", [("ping", "{}")])
    assert read(PHI, [f"<|tool_call|>[{PING}]<|/tool_call|>\n bye"]) == ("bye", [("ping", "{}")])
    assert read(LLAMA, [f"<|python_tag|>{LLAMA_PING}"]) == ("", [("ping", "{}")])
    assert read(LLAMA, ['{"type": "function", "name": "ping", "parameters": {"a": 1}}']) == ("", [("ping", '{"a":1}')])


def grammar(tokenizer: LLTokenizer, form: ToolFormat, is_forced: bool, most: int = 0, otherwise: object = None) -> str:
    calls = ToolCalls(form.opening, TOOLS, is_forced, most, otherwise)  # type: ignore[arg-type]
    return serialised(GrammarSpec(calls), lambda marker: special_token(tokenizer, marker))


def accepts(tokenizer: LLTokenizer, grammar: str, text: str) -> bool:
    matcher: LLMatcher = new_matcher(tokenizer, grammar)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@FORMATS
def test_forced_calls_are_those_the_parser_reads(tokenizer: LLTokenizer, form: ToolFormat) -> None:
    forced = grammar(tokenizer, form, is_forced=True)
    both = BOTH[form].replace('</tool_call>"', '"')  # a control token is never inside a string
    assert accepts(tokenizer, forced, both)
    for wrong in ("", "Hello", both.replace("city", "town"), both.replace("weather", "climate"), both[:-2]):
        assert not accepts(tokenizer, forced, wrong), wrong


@FORMATS
def test_at_most_one_call(tokenizer: LLTokenizer, form: ToolFormat) -> None:
    one = grammar(tokenizer, form, is_forced=True, most=1)
    assert not accepts(tokenizer, one, BOTH[form].replace('</tool_call>"', '"'))
    single = json.dumps({"name": "ping", form.arguments: {}})
    text = {
        HERMES: f"<tool_call>\n{single}\n</tool_call>",
        MISTRAL: f"[TOOL_CALLS][{single}]",
        PHI: f"<|tool_call|>[{single}]<|/tool_call|>",
        LLAMA: single,
    }[form]
    assert accepts(tokenizer, one, text)


@FORMATS
def test_text_may_come_instead_but_a_call_must_be_right(tokenizer: LLTokenizer, form: ToolFormat) -> None:
    free = grammar(tokenizer, form, is_forced=False)
    both = BOTH[form].replace('</tool_call>"', '"')
    for fine in ("Hello, how are you?", both):
        assert accepts(tokenizer, free, fine), fine
    assert not accepts(tokenizer, free, both.replace("city", "town"))
    either = grammar(tokenizer, form, is_forced=False, otherwise=Regex("[0-9]+"))
    assert accepts(tokenizer, either, both) and accepts(tokenizer, either, "123")
    assert not accepts(tokenizer, either, "Hello")


@FORMATS
def test_at_most_one_call_behind_text(tokenizer: LLTokenizer, form: ToolFormat) -> None:
    one = grammar(tokenizer, form, is_forced=False, most=1)
    both = BOTH[form].replace('</tool_call>"', '"')
    first = both[: both.index("ping")]
    assert accepts(tokenizer, one, "Hello") and not accepts(tokenizer, one, both)
    spelled = tokenizer.tokenize_str(both, parse_special=False)  # with no control token in it
    matcher = new_matcher(tokenizer, one)
    assert matcher.try_consume_tokens(spelled) < len(spelled)
    for ending in range(1, len(first)):  # the first call alone, wherever it ends
        if accepts(tokenizer, one, first[:ending]):
            break
    else:
        raise AssertionError("no single call is accepted")


def test_which_format_a_template_teaches() -> None:
    assert find_format("{{ tools }} <tool_call>") is HERMES
    assert find_format("{{ tools }} [TOOL_CALLS]") is MISTRAL
    assert find_format("{{ tools }} <|tool|>") is PHI
    assert find_format("{{ tools }} <|python_tag|>") is LLAMA
    assert find_format("<tool_call>") is None and find_format("{{ tools }}") is None
    assert all(format_of({"tool_call": (form.opening, form.closing)}) is form for form in TOOL_FORMATS.values())
    assert format_of({}) is None


def test_an_unusual_call_behind_a_usual_one_in_a_list() -> None:
    """Each begins to be read where it begins, however the one before it was read."""
    usual, unusual = '{"name": "f", "arguments": {"a": 1}}', '{"arguments": {"b": "}"}, "name": "g"}'
    for calls in ((usual, unusual), (unusual, usual), (unusual, unusual), (usual, unusual, usual)):
        text, found = read(MISTRAL, [f"[TOOL_CALLS][{', '.join(calls)}]"])
        assert text == ""
        assert [name for name, _ in found] == ["f" if call == usual else "g" for call in calls]
