"""Texts that come in pieces and values that models wrote, beside Python's reading, JSON's, and plain definitions."""

import ast
import json
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER
from server.generation.growing_text import (
    DEEPEST,
    MAX_PENDING_CHARACTERS,
    Ended,
    Found,
    GrowingText,
    Unsure,
    as_json,
    find,
    first_of,
    read_elements,
    read_literal,
    read_value,
    uncertain,
    whole_object,
)

T = TypeVar("T")
QUOTE = '<|"|>'
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


@given(VALUES)
def test_what_python_writes_is_read(value: Any) -> None:
    assert read_literal(repr(value)) == value
    assert read_literal(repr(value), "'") == value
    assert read_literal(json.dumps(value)) == value
    assert json.loads(as_json(value)) == value


@pytest.mark.parametrize(
    "text",
    [
        *(rf"'a\{letter}b'" for letter in "ntrbfav0\\'\"\n"),
        *(rf"'a{code}1'" for code in (r"\x41", r"\xe9", r"\u00e9", r"\u20AC", r"\U0001F600", r"\ud7ff", r"\ue000")),
        r'"it\'s"',
        r"'\\n'",
        r"'[True, None, (1,)]'",
        "(1, 'a', (2,), [3, ], {'b': (4, 5,), },)",
        "{'True': True, 'n': None, 'f': False}",
        "'True'",
    ],
)
def test_literals_are_python_s(text: str) -> None:
    assert read_literal(text) == json.loads(json.dumps(ast.literal_eval(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"'\ud83d\ude00'", "\U0001f600"),  # a pair, as JSON writes what is outside of the BMP
        (r"'a\ud800b\udfff'", "a\ufffdb\ufffd"),
        (r"'\U00110000'", "\ufffd"),
        (r"'\U0010ffff'", "\U0010ffff"),
        (r"'a\/b'", "a/b"),
        (r"'\d\] \xZZ \u12'", r"\d\] \xZZ \u12"),
        ("'a\nb'", "a\nb"),
        (
            "{a: 1, b-c: 'x', two words : [true, null], é:{d:2}}",
            {"a": 1, "b-c": "x", "two words": [True, None], "é": {"d": 2}},
        ),
        ("{a: {'b': 'c: d'}}", {"a": {"b": "c: d"}}),
    ],
)
def test_literals_that_python_refuses(text: str, expected: Any) -> None:
    assert read_literal(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f'{QUOTE}it\'s \\n "so"{QUOTE}', 'it\'s \\n "so"'),
        (f"{{a:{QUOTE}b}}, c:{QUOTE}, d:[1,{QUOTE}{QUOTE}]}}", {"a": "b}, c:", "d": [1, ""]}),
    ],
)
def test_strings_in_a_quote_of_their_own_have_no_escapes(text: str, expected: Any) -> None:
    assert read_literal(text, QUOTE) == expected


@pytest.mark.parametrize("text", ["", "Truest", "f(1)", "'a", "[1", "1 2", "NaN", "Infinity", "nan", "x"])
def test_no_literal(text: str) -> None:
    with pytest.raises(ValueError):
        read_literal(text)


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("17", None, 17),
        (" 17 ", {"integer"}, 17),
        ("17", {"string"}, "17"),
        (" a ", {"string"}, " a "),
        (" a ", None, " a "),
        ("1.5", {"integer"}, "1.5"),
        ("2.0", {"integer"}, 2.0),
        ("(1, 'a')", {"array"}, [1, "a"]),
        ("[1]", {"object"}, "[1]"),
        ("NaN", None, "NaN"),
        ("[" * 100_000, None, "[" * 100_000),
    ],
)
def test_values_have_an_allowed_type_or_are_text(text: str, types: set[str] | None, expected: Any) -> None:
    found = read_value(text, None if types is None else frozenset(types))
    assert (found, type(found)) == (expected, type(expected))


def test_whole_objects() -> None:
    assert whole_object(' {"a": [1, "é"]} ') == {"a": [1, "é"]}
    assert whole_object('{"a": "\ud800"}') == {"a": "?"}
    for text in ("", "{", '{"a": 1', '{"a": 1}}', "[1]", '"a"', "null", "{'a': 1}", '{"a":' * 100_000):
        assert whole_object(text) is None


def test_json_is_written_without_escapes_that_it_does_not_need() -> None:
    assert as_json({"ü": ["日本", '"', "\n", None]}) == '{"ü": ["日本", "\\"", "\\n", null]}'
    assert as_json("\ud800") == '"?"'


ANY: dict[str, Any] = {}
NESTED = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "word": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}},
        "more": {"$ref": "#/$defs/more"},
        "item": {"type": "number"},
    },
    "$defs": {"more": {"type": "object", "properties": {"word": {"type": "string"}}}},
}
ELEMENTS = [
    ("<count>17</count><word>17</word>", NESTED, {"count": 17, "word": "17"}),
    (" <count> 17 </count>\n <word>a b</word> ", NESTED, {"count": 17, "word": "a b"}),
    ("<list><item>1</item><item>b</item></list>", NESTED, {"list": ["1", "b"]}),
    ("<list></list>", NESTED, {"list": []}),
    ("<more></more>", NESTED, {"more": {}}),
    ("<word></word>", NESTED, {"word": ""}),
    (
        "<more><word>1</word><count>2</count></more><count>3</count>",
        NESTED,
        {"more": {"word": "1", "count": 2}, "count": 3},
    ),
    ("<item>1</item>", NESTED, {"item": 1}),  # an object may have a key of that name
    ("<item>1</item>", ANY, [1]),
    ("<item>1</item><other>2</other>", ANY, {"item": 1, "other": 2}),
    ("<a><b>1</b></a>", ANY, {"a": {"b": 1}}),
    ("<a>1</a> tail", ANY, {"a": 1}),
    ("<a>1", ANY, {"a": 1}),
    ("<a><a>1</a></a><b>2</b>", ANY, {"a": {"a": 1}, "b": 2}),
    ("text <a>1</a>", ANY, "text <a>1</a>"),
    ("< a>1</ a>", ANY, "< a>1</ a>"),
    ("", {"type": ["array", "null"]}, ""),
    ("", {}, ""),
    ("", {"type": "integer"}, {}),
]


@pytest.mark.parametrize("before", ["", "]<]tag[>["])
@pytest.mark.parametrize(("text", "schema", "expected"), ELEMENTS)
def test_nested_tags(text: str, schema: dict[str, Any], expected: Any, before: str) -> None:
    marked = text.replace("<", f"{before}<")
    expected = expected.replace("<", f"{before}<") if isinstance(expected, str) else expected
    assert read_elements(marked, before, "item", schema, schema) == expected


def test_tags_that_are_nested_too_deep_are_text() -> None:
    value = read_elements("<a>" * 70 + "</a>" * 70, "", "item", {}, {})
    for _ in range(DEEPEST + 1):
        value = value["a"]
    assert value == "<a>" * (69 - DEEPEST) + "</a>" * (69 - DEEPEST)


FINDS = [
    ("</a>", "</a>b", Found(4, "")),
    ("</a>\n", " \n</a>\nb", Found(6, "")),  # white space differs, and that behind is left
    ("</a>", "</b>", None),
    ("< a >", "<a>", Found(3, "")),
    ("", "x", Found(0, "")),
    (f"<{NAME}>", "< get >", Found(7, "")),
    (f"<{NAME}>", "<got>", None),
    (f"{ID}:", "call_1:a b", None),  # an id may have a colon in it
    (f"{ID}>", " call:1.a-b>", Found(12, "call:1.a-b")),
    (f"{ID}>", ">", None),
    (f"#{NUMBER}#", "#12#", Found(4, "")),
    (f"#{NUMBER}#", "#x#", None),
    (f"#{NUMBER}#", "#1234567890#", None),  # nine digits at most
    (f"<{KEY}>", "<a-b.c>", Found(7, "")),
    (f"<{KEY}>", "</a>", None),
    (f"<{KEY}>", "<>", None),
    (f"<{KEY}>", "<a b>", None),
    (f"{KEY}=", ", k=", None),
]


@pytest.mark.parametrize(("literal", "text", "expected"), FINDS)
def test_literals_in_a_text(literal: str, text: str, expected: Found | None) -> None:
    assert find(literal, text, name="get" if NAME in literal else "") == expected
    shifted = None if expected is None else Found(expected.end + 2, expected.id)
    assert find(literal, f"xy{text}", 2, "get" if NAME in literal else "") == shifted


def test_a_key_that_is_known_is_the_only_one() -> None:
    assert find(f"<{KEY}>", "<k>", name="k") == Found(3, "")
    assert find(f"<{KEY}>", "<l>", name="k") is None


@pytest.mark.parametrize(("literal", "text", "expected"), [case for case in FINDS if case[2] is not None and case[0]])
def test_every_beginning_of_a_literal_is_unsure(literal: str, text: str, expected: Found) -> None:
    for cut in range(expected.end):
        with pytest.raises(Unsure):
            find(literal, text[:cut], name="get" if NAME in literal else "")


def test_the_first_of_several_literals() -> None:
    assert first_of(["ab", "a"], "abc", 0) == "ab"
    assert first_of(["b", "a"], "abc", 0) == "a"
    assert first_of(["b", "c"], "abc", 2) == "c"
    assert first_of(["b", "c"], "abc", 0) is None
    assert first_of(["abcd", "abc"], "abc", 0) == "abc"
    assert first_of([f"<{NAME}>"], "<f>", 0, "f") == f"<{NAME}>"
    for literals in (["abcd", "b"], ["b", "abcd"]):
        with pytest.raises(Unsure):
            first_of(literals, "abc", 0)


@given(st.text("ab <", max_size=8), st.lists(st.text("ab <", min_size=1, max_size=4).filter(str.strip), max_size=3))
@example("aa", ["aab"])
def test_what_is_uncertain(text: str, literals: list[str]) -> None:
    """By definition: the longest end that begins a literal without being all of it, and white space before it."""
    sizes = [
        size
        for size in range(1, len(text) + 1)
        for each in literals
        if each.startswith(text[-size:]) and each != text[-size:]
    ]
    rest = text[: len(text) - max(sizes, default=0)]
    assert uncertain(text, tuple(literals)) == len(text) - len(rest.rstrip())


def by_character(text: str, read: Callable[[GrowingText], Generator[None, None, T]]) -> tuple[T, int, str]:
    """What is read of a text that comes by the character, after how many, and what is left of them."""
    source = GrowingText()
    steps, pieces = read(source), iter(text)
    for count in range(len(text) + 2):
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count, source.text
        source.text += (piece := next(pieces, ""))
        source.is_last = not piece
    raise AssertionError("it waits behind the end")


READS: list[tuple[str, Callable[[GrowingText], Generator[None, None, Any]], Any, int, str]] = [
    ("abc", lambda source: source.sign(1), "b", 2, "ab"),
    (" \n\t ab", lambda source: source.solid(1), 4, 5, " \n\t a"),
    (" ,\n,ab", lambda source: source.skip(","), None, 5, "a"),
    (" ,ab", lambda source: source.skip(), None, 2, ","),
    ("\nab", lambda source: source.begins("\na"), True, 2, "\na"),
    ("\nab", lambda source: source.begins("\nb"), False, 2, "\na"),
    ("ab", lambda source: source.begins(""), True, 0, ""),
    (" <f>a", lambda source: source.at(f"<{NAME}>", 0, "f"), Found(4, ""), 4, " <f>"),
    ("<f>a", lambda source: source.at(f"<{NAME}>", name="g"), None, 2, "<f"),
    ("<f>a", lambda source: source.first([f"<{NAME}/>", f"<{NAME}>"], 0, "f"), f"<{NAME}>", 3, "<f>"),
    ("xyz", lambda source: source.first(["a", "b"]), None, 1, "x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "read", "expected", "count", "left"), READS)
def test_no_more_is_awaited_than_is_needed(
    text: str, read: Callable[[GrowingText], Generator[None, None, Any]], expected: Any, count: int, left: str
) -> None:
    assert by_character(text, read) == (expected, count, left)


ENDLESS: list[Callable[[GrowingText], Iterator[None]]] = [
    lambda source: source.more(),
    lambda source: source.sign(len(source.text)),
    lambda source: source.solid(len(source.text)),
    lambda source: source.skip(" x"),
    lambda source: source.begins(f"{source.text}x"),
    lambda source: source.at(f"{source.text}x"),
    lambda source: source.first([f"{source.text}x"]),
]


@pytest.mark.parametrize("read", ENDLESS)
def test_a_text_that_ends_or_is_too_long(read: Callable[[GrowingText], Iterator[None]]) -> None:
    source = GrowingText()
    source.text = "x" * 9
    assert next(read(source), "over") is None
    source.is_last = True
    with pytest.raises(Ended):
        next(read(source))
    source.is_last, source.text = False, "x" * MAX_PENDING_CHARACTERS
    assert next(source.more(), "over") is None
    source.text += "x"
    with pytest.raises(Ended):
        next(source.more())
