"""What each form accepts, by texts that are right and texts that are not; on the demo tokenizer and on bytes alone."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer, TokenizerWrapper

from engine.bundle.answer_format import CallFormat, TaggedArguments
from engine.demo.location import demo_folder
from engine.grammar.call_rules import Literals
from engine.grammar.compiler import compiled, serialised, unforced
from engine.grammar.masks import control_tokens, load_tokenizer, new_matcher
from engine.grammar.spec import CalledTool, Cfg, Choice, Form, GrammarSpec, JsonSchema, Regex, TextForm, ToolCalls
from engine.text.tokenizer import Tokenizer
from tests.call_formats import CODER, HERMES, LLAMA, answers

GBNF = 'root ::= item ("," item)*\nitem ::= [a-z]+'
LARK = 'start: item ("," item)*\nitem: /[a-z]+/'
POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}


class _Bytes:
    """Token i is byte i; 256 ends."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes((byte,)) for byte in range(256)), b"<end>")
    special_token_ids = (256,)

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


def demo_tokenizer() -> LLTokenizer:
    return load_tokenizer(demo_folder() / "tokenizer.json", 3072, [2, 0])


def byte_tokenizer() -> LLTokenizer:
    return LLTokenizer(TokenizerWrapper(_Bytes()), eos_token=[256])


@pytest.fixture(params=[demo_tokenizer, byte_tokenizer], scope="module")
def tokenizer(request: pytest.FixtureRequest) -> LLTokenizer:
    make: Callable[[], LLTokenizer] = request.param
    return make()


def accepts(tokenizer: LLTokenizer, form: Form, text: str, after: str = "", opening: str = "") -> bool:
    made = compiled(GrammarSpec(form, after, opening), tokenizer, control_tokens(tokenizer))
    assert not made.error, made.error
    matcher = new_matcher(tokenizer, made.grammar)
    tokens = tokenizer.tokenize_str(text, parse_special=True)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


ROWS: list[tuple[Form, tuple[str, ...], tuple[str, ...]]] = [
    (Regex("^(a+)+$"), ("a", "aaaa"), ("", "b", "ab", "^a$")),
    (Regex("[^x]{2}"), ("ab", "é "), ("a", "ax", "abc")),
    (Choice(("a", "ab", 'q"\\', "é\n\x01")), ("a", "ab", 'q"\\', "é\n\x01"), ("", "b", "abc")),
    (Cfg(GBNF), ("a", "ab,c"), ("", ",", "a,", "A")),
    (Cfg(LARK), ("a", "ab,c"), ("", ",", "a,", "A")),
    (JsonSchema('{"type": "object"}'), ("{}", '{"a": [1, null]}'), ("", "[]", "{", '{"a"}')),
    (JsonSchema("true"), ("1", '"a"', "[]"), ("", "tru")),
    (JsonSchema(json.dumps(POINT)), ('{"x":1}', '{ "x" :\n1}'), ("{}", '{"x":"1"}', '{"x":1,"y":2}', '{"x":1} ')),
    (JsonSchema(json.dumps(POINT), whitespace=""), ('{"x":1}',), ('{"x": 1}',)),
    (JsonSchema(json.dumps(POINT), whitespace=" "), ('{"x":1}', '{ "x": 1 }'), ('{"x":  1}', '{"x":\n1}')),
    (JsonSchema(json.dumps(POINT)), ('{"x":' + " " * 40 + "1}",), ('{"x":' + " " * 41 + "1}",)),
    (JsonSchema('{"type": "string"}'), (r'"\u00e9 \ud83d\ude00 \n é"',), (r'"\u00e"', r'"\x"')),
    (JsonSchema('{"not": {"type": "null"}, "type": "boolean"}', is_lenient=True), ("true",), ("null",)),
    (JsonSchema('{"type": "integer", "x-guidance": {"lenient": true}}'), ("1",), ("1.5",)),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0])[:50])
def test_texts_that_fit_and_texts_that_do_not(
    tokenizer: LLTokenizer, row: tuple[Form, tuple[str, ...], tuple[str, ...]]
) -> None:
    form, right, wrong = row
    assert [text for text in right if not accepts(tokenizer, form, text)] == []
    assert [text for text in wrong if accepts(tokenizer, form, text)] == []


X = {"properties": {"x": {"type": "integer"}}}
PARAMETERS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ({"type": "object", "properties": {}}, ("{}",), ('{"type": "object"}',)),
    (X, ("{}", '{"x": 1}'), ('{"y": 1}', '{"x": 1, "y": 2}')),
    (X | {"additionalProperties": True}, ('{"x": 1, "y": 2}',), ()),
    (X | {"patternProperties": {"^y$": {}}}, ('{"y": 2}',), ()),
    (X | {"allOf": [{"properties": {"y": {}}}]}, ('{"y": 2}',), ()),
    ({"type": "object"}, ("{}", '{"y": 2}'), ()),
    ({"properties": {}, "required": ["y"]}, ('{"y": 2}',), ("{}",)),
]


@pytest.mark.parametrize("row", PARAMETERS, ids=lambda row: str(row[0])[:50])
def test_a_call_names_the_parameters_of_its_function_and_no_others(
    row: tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]],
) -> None:
    """Unless the schema says that there may be others, or names them elsewhere."""
    schema, right, wrong = row
    form = ToolCalls(HERMES, (CalledTool("f", json.dumps(schema)),), is_forced=True)
    call = HERMES.begin + "f" + HERMES.named + "%s" + HERMES.end
    assert [text for text in right if not accepts(byte_tokenizer(), form, call % text)] == []
    assert [text for text in wrong if accepts(byte_tokenizer(), form, call % text)] == []


KINDS = {"string": '" string>', "integer": '" number>', "null": '" null>', "object": '" object>', "boolean": '" bool>'}
TAGGED = CallFormat(
    "<tool_call>",
    "\n",
    TaggedArguments('<arg name="', KINDS, "</arg>\n", words=("True", "False"), is_python=True),
    "</tool_call>",
)
TAGGED_CALLS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    ({"type": "string"}, ('x" string>a</arg> b </tool_ </arg>\n',), ('x" number>1</arg>\n',)),
    (
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        ('x" number>1</arg>\n', 'x" null>None</arg>\n'),
        ('x" null>1</arg>\n',),
    ),
    ({"type": ["string", "null"]}, ('x" string>1</arg>\n', 'x" null>null</arg>\n'), ('x" null>a</arg>\n',)),
    (
        {"type": "object", "properties": {"a b": {"type": "string"}}, "required": ["a b"]},
        ("""x" object>{'a b': 'é'}</arg>\n""", """x" object>{"a b": "é"}</arg>\n"""),
        ("""x" object>{'c': 'é'}</arg>\n""", 'x" object>{}</arg>\n'),
    ),
]


@pytest.mark.parametrize("row", TAGGED_CALLS, ids=lambda row: str(row[0])[:50])
def test_a_tagged_value_is_written_as_its_type_is(row: tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]) -> None:
    """What closes it is a part of a string unless the end of the call follows, which is a control token here."""
    schema, right, wrong = row
    tool = CalledTool("f", json.dumps({"type": "object", "properties": {"x": schema}}))
    form = ToolCalls(TAGGED, (tool,), is_forced=True)
    call = '<tool_call>f\n<arg name="%s</tool_call>'
    assert [text for text in right if not accepts(demo_tokenizer(), form, call % text)] == []
    assert [text for text in wrong if accepts(demo_tokenizer(), form, call % text)] == []
    for empty in ("<tool_call>f\n</tool_call>", "<tool_call>f\n\n</tool_call>"):
        assert accepts(demo_tokenizer(), form, empty)


PERSON = {"name": {"type": "string"}, "age": {"type": "integer"}}


@pytest.mark.parametrize("keys", [["age", "name"], ["name", "age"]])
def test_an_answer_in_json_may_begin_as_a_call_does(tokenizer: LLTokenizer, keys: list[str]) -> None:
    schema = {"type": "object", "properties": {key: PERSON[key] for key in keys}, "required": keys}
    answer = JsonSchema(json.dumps(schema | {"additionalProperties": False}))
    tools = (CalledTool("f", json.dumps({"properties": {"x": {"type": "integer"}}})), CalledTool("g"))
    form = ToolCalls(LLAMA, tools, is_forced=False, otherwise=answer, mark=answers(LLAMA).mark(LLAMA))
    values = {"name": "f", "age": 3}
    person = {key: values[key] for key in keys}
    for text in (json.dumps(person), json.dumps(person, indent=2), json.dumps(person, separators=(",", ":"))):
        assert accepts(tokenizer, form, text)
    called = '{"name": "f", "parameters": {"x": 1}}'
    for text in (called, called.replace(" ", ""), f'{called}; {{"name": "g", "parameters": {{}}}}'):
        assert accepts(tokenizer, form, text)
    for text in (
        '{"name": "f"}',
        '{"name": "h", "parameters": {}}',
        called.replace("1", '"1"'),
        f"{called}; {called} ",
    ):
        assert not accepts(tokenizer, form, text)


REFUSED: list[tuple[Form, str]] = [
    (Regex("(a"), "unclosed group"),
    (Regex("(?=a)b"), "look-around"),
    (Cfg("start: nothing"), "nothing"),
    (Cfg("root ::= ("), ""),
    (Cfg("start: start"), "no text satisfies it"),
    (Regex(r"[^\s\S]"), "no text satisfies it"),
    (JsonSchema('{"$ref": "#"}'), "no text satisfies it"),
    (JsonSchema("{"), "not JSON"),
    (JsonSchema("[" * 100_000), "not JSON"),
    (JsonSchema("3"), "must be an object"),
    (JsonSchema("false"), "must be an object"),
    (JsonSchema('{"type": "strin"}'), "strin"),
    (JsonSchema('{"not": {}}'), "not"),
    (JsonSchema('{"oneOf": [{"const": 1}, {"const": 2}]}'), "oneOf constraints are not supported. Use anyOf."),
    (JsonSchema('{"$ref": "#/nowhere"}'), "nowhere"),
    (JsonSchema('{"$ref": "http://example.com/schema"}'), ""),
    (JsonSchema('{"type": "string", "minLength": 3, "maxLength": 2}'), "nsatisfiable"),
    (ToolCalls(HERMES, (CalledTool("f", '{"type": "string"}'),), True), "type object"),
    (ToolCalls(HERMES, (CalledTool("f", '{"not": {}}', is_lenient=False),), True), "not"),
    *(
        (ToolCalls(form, (CalledTool("f", json.dumps({"properties": {"a": {}}, "required": [name]})),), True), "names")
        for form in (HERMES, CODER)
        for name in (1, ["a"])
    ),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: str(row[0])[:50])
def test_what_is_refused_says_why(tokenizer: LLTokenizer, row: tuple[Form, str]) -> None:
    form, reason = row
    made = compiled(GrammarSpec(form), tokenizer, control_tokens(tokenizer))
    assert made.grammar == "" and made.error and reason in made.error
    assert len(made.error) < 1000 and "start:" not in made.error and "non-verbose" not in made.error
    assert "option" not in made.error  # of llguidance: nobody can set one here


BAD, FINE = CalledTool("bad", '{"not": {}}', is_lenient=False), CalledTool("fine", '{"type": "object"}')


@pytest.mark.parametrize(
    ("tools", "otherwise", "tool"),
    [
        ((FINE, BAD), None, "bad"),
        ((FINE, BAD), Regex("a"), "bad"),
        ((BAD,), JsonSchema('{"not": {}}'), "bad"),
        ((FINE,), JsonSchema('{"not": {}}'), ""),
    ],
)
def test_what_is_refused_names_the_tool_at_fault(
    tokenizer: LLTokenizer, tools: tuple[CalledTool, ...], otherwise: TextForm | None, tool: str
) -> None:
    spec = GrammarSpec(ToolCalls(HERMES, tools, False, 1, otherwise))
    made = compiled(spec, tokenizer, control_tokens(tokenizer))
    assert made.error and made.tool == tool


NAMED = CalledTool("f", '{"properties": {"<|im_start|>": {"const": "<think>"}}, "additionalProperties": false}', False)
CONTROL: list[tuple[Form, str]] = [
    (Choice(("<|im_end|>", "b")), "<|im_end|>"),
    (Regex(r"a<\|im_end\|>b"), "a<|im_end|>b"),
    (JsonSchema('{"enum": ["<|im_start|>"]}'), '"<|im_start|>"'),
    (Cfg('start: "<think>" "!"'), "<think>!"),
    (ToolCalls(HERMES, (NAMED,), False, 1, Choice(("<think>",))), "<think>"),
]


@pytest.mark.parametrize("row", CONTROL, ids=lambda row: row[1])
def test_the_text_of_a_control_token_is_spelled(row: tuple[Form, str]) -> None:
    tokenizer = demo_tokenizer()
    made = compiled(GrammarSpec(row[0]), tokenizer, control_tokens(tokenizer))
    assert not made.error
    matcher, left = new_matcher(tokenizer, made.grammar), row[1].encode()
    while left:
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [token for token in np.flatnonzero(mask).tolist() if not tokenizer.is_special_token(token)]
        token = next(each for each in allowed if left.startswith(tokenizer.decode_bytes([each])))
        assert matcher.consume_token(token), matcher.get_error()
        left = left[len(tokenizer.decode_bytes([token])) :]
    assert matcher.is_accepting()


def test_only_what_holds_such_a_text_is_spelled_freely() -> None:
    grammar = serialised(GrammarSpec(Choice(("a",))), Literals({}))
    assert unforced(grammar, ("<|im_end|>",)) == grammar
    assert unforced(grammar, ("a",)) != grammar


def test_references_of_a_tool_point_into_its_own_schema(tokenizer: LLTokenizer) -> None:
    schema = {"properties": {"p": {"$ref": "#/$defs/point"}}, "required": ["p"], "$defs": {"point": POINT}}
    form = ToolCalls(HERMES, (CalledTool("f", json.dumps(schema)),), True)
    text = '<tool_call>\n{"name": "f", "arguments": {"p": {"x": %s}}}\n</tool_call>'
    assert accepts(tokenizer, form, text % "7")
    assert not accepts(tokenizer, form, text % '"7"')


def test_reasoning_is_free_until_its_marker(tokenizer: LLTokenizer) -> None:
    form = JsonSchema(json.dumps(POINT))
    assert accepts(tokenizer, form, 'let me {"think"}</think>\n\n{"x": 1}', "</think>")
    assert not accepts(tokenizer, form, 'let me think</think>\n\n{"y": 1}', "</think>")
    assert not accepts(tokenizer, form, '{"x": 1}', "</think>")


WRITTEN = st.text(st.characters(exclude_categories=("Cc", "Cs")))  # control characters have to be escaped
LEAVES = st.none() | st.booleans() | st.integers() | WRITTEN


@given(
    st.dictionaries(WRITTEN, st.recursive(LEAVES, lambda i: st.lists(i) | st.dictionaries(WRITTEN, i), max_leaves=6))
)
def test_any_json_object_fits_the_any_object_form(value: Any) -> None:
    assert accepts(byte_tokenizer(), JsonSchema('{"type": "object"}'), json.dumps(value, ensure_ascii=False))


def test_llguidance_sees_the_bytes_that_the_detokenizer_gives_out() -> None:
    ours = Tokenizer((demo_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    theirs = demo_tokenizer()
    wrong = [i for i in range(3072) if theirs.decode_bytes([i]) != ours.token_bytes(i)]
    assert {ours.token_bytes(i) for i in wrong} <= {
        b"\xff"
    }  # never part of UTF-8; llguidance marks control tokens with it


def test_a_model_may_think_before_the_form_or_not(tokenizer: LLTokenizer) -> None:
    marks = ("</tool_call>", "<tool_call>")  # one token each for the one tokenizer, text for the other
    right = ("aa", "<tool_call>\nhm, <b>\n</tool_call>\n\naa", "<tool_call></tool_call>a")
    wrong = ("hm</tool_call>a", "<tool_call>a", "<tool_call>a</tool_call>b", "hm a")
    assert [text for text in right if not accepts(tokenizer, Regex("a+"), text, *marks)] == []
    assert [text for text in wrong if accepts(tokenizer, Regex("a+"), text, *marks)] == []
