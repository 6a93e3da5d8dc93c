"""The arguments of one call as models write them: JSON, tagged, nested, typed and literal, at any cut."""

import json
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bundle.answer_format import KEY, CallFormat, LiteralArguments, Markers, TaggedArguments
from server.generation.argument_reading import MAX_KEY_CHARACTERS, ArgumentReader, CallArguments
from server.generation.growing_text import Ended, GrowingText
from tests.call_formats import KINDS, cuts

Read = Callable[[ArgumentReader], Generator[CallArguments | None, None, Any]]
TAGS = TaggedArguments("<p=", dict.fromkeys(KINDS, ">\n"), "\n</p>\n")
WRAPPED = TaggedArguments('<p name="', dict.fromkeys(KINDS, '">'), "</p>", Markers("<![CDATA[", "]]>"))
TYPED = TaggedArguments('<p name="', {kind: f'" string="{str(kind == "string").lower()}">' for kind in KINDS}, "</p>\n")
LONGER = TaggedArguments("<p=", {"string": ">", "integer": ">#"}, "</p>")
NESTED = TaggedArguments("]~[<", dict.fromkeys(KINDS, ">"), f"]~[</{KEY}>", item="item")
PYTHON = CallFormat("", "(", LiteralArguments("=", ", ", "'"), ")", "[", ", ", "]")
RAW = CallFormat("", "(", LiteralArguments("=", ", ", "'", is_raw=True), ")", "[", ", ", "]")
QUOTED = CallFormat("call:", "{", LiteralArguments(":", ",", '<|"|>'), "}<end>", between="")
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "b": {"type": "boolean"},
        "o": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        "l": {"type": "array", "items": {"type": "string"}},
        "any": {},
        "maybe": {"type": ["string", "null"]},
    },
}


def run(read: Read, pieces: Sequence[str]) -> tuple[str, str, bool]:
    """The arguments of a text that comes in pieces, what is left of it, and whether it ended in the middle."""
    source, given = GrowingText(), ""
    steps = read(ArgumentReader(source, 3))
    for number, piece in enumerate([*pieces, ""]):
        source.text += piece
        source.is_last = number == len(pieces)
        try:
            while (part := next(steps)) is not None:
                assert part.index == 3
                given += part.text
        except (StopIteration, Ended) as end:
            return given, source.text + "".join(pieces[number + 1 :]), isinstance(end, Ended)
    raise AssertionError("it waits behind the end")


def check(read: Read, text: str, arguments: Any, left: str) -> None:
    """At any cut, the arguments are this value, as JSON, and this is left but for white space."""
    for pieces in cuts(text):
        given, rest, is_cut = run(read, pieces)
        assert (json.loads(given), rest.lstrip(), is_cut) == (arguments, left.lstrip(), False)


JSON_TEXTS = [
    '{"a": [1, {"b": "}]\\"{"}], "c": {}} tail',
    '[[], "]", {"": null}]}',
    '"a \\\\" b"',
    '{} {"b": 1}',
    '{"a": "\\u00e9<b>"}</end>',
    "17, 18",
    "-1.5e3}",
    "null\n",
    "true]",
    'false"x"',
]


@pytest.mark.parametrize("text", JSON_TEXTS)
def test_one_json_value_is_taken_as_it_is_written(text: str) -> None:
    value, end = json.JSONDecoder().raw_decode(text)
    check(lambda reader: reader.json(), text, value, text[end:])
    for pieces in cuts(text):
        assert run(lambda reader: reader.json(), pieces)[0] == text[:end]
        assert run(lambda reader: reader.json(copies=False), pieces) == ("", text[end:], False)


def test_what_is_open_already_is_closed() -> None:
    for pieces in cuts(' , "a": {"}": [1]}} tail'):
        assert run(lambda reader: reader.json(depth=1, copies=False), pieces) == ("", " tail", False)
    for pieces in cuts('{"a": [1</end>'):  # no bracket closes it, but a tag stands outside of its strings
        assert run(lambda reader: reader.json(), pieces) == ('{"a": [1', "</end>", False)
    for pieces in cuts('{"a": ["x'):
        given, left, is_cut = run(lambda reader: reader.json(), pieces)
        assert (given + left, is_cut) == ('{"a": ["x', True)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=6,
    ),
    st.integers(1, 9),
)
def test_any_json_value_ends_where_json_ends(value: Any, size: int) -> None:
    text = json.dumps(value, ensure_ascii=False)
    pieces = [f"{text},"[start : start + size] for start in range(0, len(text) + 1, size)]
    assert run(lambda reader: reader.json(), pieces) == (text, ",", False)


def tagged(form: TaggedArguments, schema: dict[str, Any] = SCHEMA) -> Read:
    return lambda reader: reader.tagged(form, "</f>", schema)


TAGGED = [
    (TAGS, "</f>", {}),
    (TAGS, "<p=s>\na\n</p>\n</f>", {"s": "a"}),
    (TAGS, "<p=s>\n\n a\nb \n\n</p>\n</f>", {"s": "\n a\nb \n"}),
    (TAGS, "<p=s>a</p></f>", {"s": "a"}),  # the line breaks were forgotten
    (TAGS, "\n <p= s >\n17\n</p>\n<p=n>\n17\n</p>\n</f>", {"s": "17", "n": 17}),
    (TAGS, '<p=s>\n"a" \\n \\\n</p>\n</f>', {"s": '"a" \\n \\'}),
    (TAGS, "<p=s>\n<p=n></p> </b> </f> \n</p>\n</f>", {"s": "<p=n></p> </b> </f> "}),
    (TAGS, "<p=b>\nTrue\n</p>\n<p=o>\n{'n': 1}\n</p>\n</f>", {"b": True, "o": {"n": 1}}),
    (TAGS, "<p=any>\n1\n</p>\n<p=x>\nx y\n</p>\n<p=maybe>\nnull\n</p>\n</f>", {"any": 1, "x": "x y", "maybe": None}),
    (TAGS, "<p=maybe>\n1\n</p>\n<p=n>\none\n</p>\n</f>", {"maybe": "1", "n": "one"}),
    (WRAPPED, '<p name="s"><![CDATA[<b>]]</p>]]></p><p name="n">3</p></f>', {"s": "<b>]]</p>", "n": 3}),
    (WRAPPED, '<p name="s">17</p><p name="b">False</p></f>', {"s": "17", "b": False}),
    (WRAPPED, '<p name="n"><![CDATA[17]]></p></f>', {"n": "17"}),
    (TYPED, '<p name="s" string="true">17</p>\n<p name="n" string="false">17</p>\n</f>', {"s": "17", "n": 17}),
    (TYPED, '<p name="any" string="true">17</p>\n<p name="x" string="false">[1]</p>\n</f>', {"any": "17", "x": [1]}),
    (TYPED, '<p name="n" string="true">1</p>\n<p name="maybe" string="false">null</p></f>', {"n": "1", "maybe": None}),
    (TYPED, '<p name="s" string="false">17</p>\n</f>', {"s": 17}),
    (LONGER, "<p=s>17</p><p=n>#17</p></f>", {"s": "17", "n": 17}),
    (NESTED, "]~[<s>1]~[</s>]~[<n>1]~[</n></f>", {"s": "1", "n": 1}),
    (NESTED, "]~[<o>]~[<n>1]~[</n>]~[<s>1]~[</s>]~[</o></f>", {"o": {"n": 1, "s": "1"}}),
    (NESTED, "]~[<l>]~[<item>1]~[</item>]~[<item>b]~[</item>]~[</l></f>", {"l": ["1", "b"]}),
    (NESTED, "]~[<l>]~[</l>]~[<o>]~[</o></f>", {"l": [], "o": {}}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "arguments"), TAGGED)
def test_tagged_arguments(form: TaggedArguments, text: str, arguments: dict[str, Any]) -> None:
    body = text.removesuffix("</f>")
    check(tagged(form), f"{body}</f> more", arguments, "</f> more")
    for cut in (0, 2):  # the end token came before the end of the call
        given, _, is_cut = run(tagged(form), [f"{body}</f>"[: len(body) + cut]])
        assert (json.loads(given), is_cut) == (arguments, False)


def test_a_string_goes_out_as_it_comes_and_other_values_once_complete() -> None:
    source = GrowingText()
    steps = tagged(TAGS)(ArgumentReader(source, 0))
    for piece, certain in [
        ("<p=s>\n", '{"s": "'),
        ('a"', 'a\\"'),
        (" b \n", " b"),
        ("</", ""),
        ("p> c", " \\n</p> c"),
        ("\n</p>\n<p=n>", '"'),
        ("\n17\n</p>", ', "n": '),
        ("</f>", "17}"),
    ]:
        source.text += piece
        given = ""
        for part in steps:
            if part is None:
                break
            given += part.text
        assert (piece, given) == (piece, certain)


def test_a_key_that_never_ends_is_none() -> None:
    for length in (MAX_KEY_CHARACTERS - 1, MAX_KEY_CHARACTERS):
        text = f"<p={'k' * length}>\n1\n</p>\n</f>"
        given, left, _ = run(tagged(TAGS), [text])
        is_key = length < MAX_KEY_CHARACTERS
        assert (json.loads(given), left) == (({"k" * length: 1}, "\n</f>") if is_key else ({}, text))


def test_a_schema_without_properties_allows_every_type() -> None:
    for schema in ({}, {"properties": None}, {"properties": {"v": True}}):
        check(tagged(TAGS, schema), "<p=v>\n17\n</p>\n</f>", {"v": 17}, "</f>")


LITERALS = [
    (PYTHON, ")", {}),
    (PYTHON, " \n)", {}),
    (PYTHON, "a=1)", {"a": 1}),
    (PYTHON, "a='x', b=\"y\", c=None)", {"a": "x", "b": "y", "c": None}),
    (PYTHON, "a = (1, [2, 'x)'], {'k': (3,)}), b=True,)", {"a": [1, [2, "x)"], {"k": [3]}], "b": True}),
    (PYTHON, r"a='it\'s, b=1)', b='\\', c='\n\u00e9')", {"a": "it's, b=1)", "b": "\\", "c": "\né"}),
    (PYTHON, "a=f(1, 2), b=x)", {"a": "f(1, 2)", "b": "x"}),
    (PYTHON, "'a'=1, \"b\"=2)", {"a": 1, "b": 2}),
    (RAW, r"a='C:\new', b=2)", {"a": r"C:\new", "b": 2}),
    (RAW, "a='it's, she said', b='x)', c=\"d\")", {"a": "it's, she said", "b": "x)", "c": "d"}),
    (RAW, "a=')]', b='it'', c=1)", {"a": ")]", "b": "it'", "c": 1}),
    (RAW, "a=[1, 'x'], b='')", {"a": [1, "x"], "b": ""}),
    (QUOTED, "}", {}),
    (QUOTED, 'a:<|"|>b}, "c\\n":<|"|>,n:17,b:true}', {"a": 'b}, "c\\n":', "n": 17, "b": True}),
    (QUOTED, 'o:{k:<|"|>}<|"|>,l:[1,{m:<|"|><|"|>}]},<n>:null}', {"o": {"k": "}", "l": [1, {"m": ""}]}, "<n>": None}),
]  # fmt: skip


@pytest.mark.parametrize(("form", "text", "arguments"), LITERALS)
def test_literal_arguments(form: CallFormat, text: str, arguments: dict[str, Any]) -> None:
    arguments_form = form.arguments
    assert isinstance(arguments_form, LiteralArguments)
    behind = form.end + form.closing
    check(lambda reader: reader.literals(arguments_form, form), f"{text[:-1]}{behind}", arguments, behind)


def test_a_key_without_a_value_ends_the_arguments() -> None:
    arguments_form = PYTHON.arguments
    assert isinstance(arguments_form, LiteralArguments)
    longest = "k" * MAX_KEY_CHARACTERS
    given, _, _ = run(lambda reader: reader.literals(arguments_form, PYTHON), list(f"{longest}=1)"))
    assert json.loads(given) == {longest: 1}
    text = f"a=1, {'b' * 2 * MAX_KEY_CHARACTERS}=2)"
    for size, left in ((1, MAX_KEY_CHARACTERS + 1), (len(text), 0)):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        given, _, is_cut = run(lambda reader: reader.literals(arguments_form, PYTHON), pieces)
        assert (len(json.loads(given)), is_cut) == (1 if left else 2, False)
