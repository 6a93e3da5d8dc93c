"""A grammar spec -> llguidance's serialised grammar. Syntax of Lark and of `%json`: llguidance's docs/syntax.md."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, grammar_from

from engine.grammar.spec import CalledTool, Cfg, Choice, Form, GrammarSpec, JsonSchema, Regex, ToolCalls
from engine.grammar.tool_formats import TOOL_FORMATS, ToolFormat

# Bounded: with any amount allowed a model can write line breaks until max_tokens. Enough for deep indentation.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,20}"
ANYTHING = "/(?s:.*)/"

SpecialToken = Callable[[str], int | None]


class Unusable(ValueError):
    """The form cannot be made into a grammar; the message says why."""


def serialised(spec: GrammarSpec, special: SpecialToken) -> str:
    """The grammar of a form. `special` gives the id of a marker that is one control token, else None.

    Unusable when it cannot be read; whether llguidance accepts it is not known yet.
    """
    body = _form(spec.form, special)
    return _after(body, spec.opening, spec.after, special) if spec.after else body


def unforced(grammar: str, controls: Sequence[str]) -> str:
    """The same grammar, spelled freely where it holds the text of a control token.

    llguidance tokenises text that can only go on in one way, takes such a text for the token, and fails on it.
    """
    plain = grammar.replace("\\", "")
    if not any(text in plain or json.dumps(text)[1:-1].replace("\\", "") in plain for text in controls):
        return grammar
    grammars = json.loads(grammar)["grammars"]
    if not grammars[0].get("lark_grammar"):
        grammars[0]["name"] = "body"
        grammars.insert(0, {"name": "top", "lark_grammar": "start: @body"})
    grammars[0]["lark_grammar"] = '%llguidance {"no_forcing": true}\n' + grammars[0]["lark_grammar"]
    return json.dumps({"grammars": grammars})


def _form(form: Form, special: SpecialToken) -> str:
    match form:
        case JsonSchema():
            return _json_schema(form)
        case Regex():
            return LLMatcher.grammar_from_regex(form.pattern)
        case Choice():
            texts = " | ".join(_literal(option) for option in dict.fromkeys(form.options))
            return _lark(f"start: CHOICE\nCHOICE: {texts}")
        case Cfg():
            return _cfg(form.text)
        case ToolCalls():
            calls = _lark(_tool_calls(form, TOOL_FORMATS[form.opening], special))
            return calls if form.otherwise is None else _either(calls, _form(form.otherwise, special))


def _json_schema(form: JsonSchema) -> str:
    schema = _loaded(form.schema, "the schema")
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        raise Unusable("the schema must be an object")
    return LLMatcher.grammar_from_json_schema(json.dumps(schema | _options(form.is_lenient, form.whitespace)))


def _options(is_lenient: bool, whitespace: str | None = None) -> dict[str, Any]:
    """Whatever the caller wrote under x-guidance is replaced."""
    flexible = {"whitespace_flexible": False} if whitespace == "" else {"whitespace_pattern": whitespace or WHITESPACE}
    return {"x-guidance": flexible | {"lenient": is_lenient}}


def _loaded(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{what} is not JSON: {error}") from None


def _cfg(text: str) -> str:
    try:
        return _lark(grammar_from("gbnf", text) if "::=" in text else text)
    except ValueError as error:
        raise Unusable(str(error)) from None


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _literal(text: str) -> str:
    return json.dumps(text)


def _marker(text: str, special: SpecialToken) -> str:
    number = special(text)
    return _literal(text) if number is None else f"<[{number}]>"


def _tool_calls(calls: ToolCalls, form: ToolFormat, special: SpecialToken) -> str:
    """Lark text. The frame of a call is fixed text, its arguments are the tool's schema."""
    lines = []
    for number, tool in enumerate(calls.tools):
        frame = f'{{"name": {json.dumps(tool.name)}, "{form.arguments}": '
        lines.append(f"call_{number}: {_literal(frame)} arguments_{number} {_literal('}')}")
        lines.append(f"arguments_{number}: %json {json.dumps(_arguments(tool))}")
    lines.append("call: " + " | ".join(f"call_{number}" for number in range(len(calls.tools))))
    blocks = _blocks(calls, form, special)
    if calls.is_forced or calls.otherwise is not None:
        return "\n".join([f"start: {blocks}", *lines])
    return "\n".join([*_with_text(form, special, calls.most), *lines])


def _arguments(tool: CalledTool) -> Mapping[str, Any]:
    schema = {} if tool.parameters is None else _loaded(tool.parameters, f"the parameters of '{tool.name}'")
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise Unusable(f"the parameters of '{tool.name}' must be a schema of type object")
    return {"type": "object"} | schema | _options(tool.is_lenient)


def _blocks(calls: ToolCalls, form: ToolFormat, special: SpecialToken) -> str:
    opening = "" if form.is_bare else f"{_marker(form.opening, special)} "
    return opening + _after_opening(form, special, calls.most, repeats=True)


def _after_opening(form: ToolFormat, special: SpecialToken, most: int, repeats: bool) -> str:
    """What follows an opening marker: the JSON, the closing marker and, if more calls are allowed, more blocks."""
    before, after = (f"{_literal(text)} " if text else "" for text in (form.before, form.after))
    closing = _marker(form.closing, special) if form.closing else ""
    if form.is_list:
        more = f'(", " call){_times(most)}' if most != 1 else ""
        return f'{before}"[" call {more} "]" {after}{closing}'
    block = f"{before}call {after}{closing}"
    if not repeats or most == 1:
        return block
    opening = "" if form.is_bare else f"{_marker(form.opening, special)} "
    return f"{block} ({_literal(form.between)} {opening}{block}){_times(most)}"


def _times(most: int) -> str:
    """How often more calls may follow the first."""
    return "*" if most == 0 else f"{{0,{most - 1}}}"


def _with_text(form: ToolFormat, special: SpecialToken, most: int) -> list[str]:
    """Start rules for text in which a call, once opened, is made well."""
    count = "*" if most == 0 else f"{{0,{most}}}"
    regex = re.escape(form.opening).replace("/", r"\/")
    unopened = f"~/(?s:.*){regex}(?s:.*)/"  # the parser would read a call where this is spelled out, too
    if form.is_bare:  # a call is the whole answer, told by its first character
        body = _after_opening(form, special, most, repeats=True)
        starts = f"start: SAID | {_marker(form.opening, special)} {body} | {body}"
        return [starts, rf"SAID: /([^{{\s](?s:.*))?/ & {unopened}"]
    body = _after_opening(form, special, most, repeats=False)
    if form.is_list:
        count = "?"
    if special(form.opening) is not None:
        return [
            f"start: SAID block{count}",
            f"block: {_marker(form.opening, special)} {body} SAID",
            f"SAID: {ANYTHING} & {unopened}",
        ]
    return [
        f"start: (head block){count} SAID",
        f"head[lazy]: /(?s:.*){regex}/",
        f"block: {body}",
        f"SAID: {ANYTHING} & {unopened}",
    ]


def _either(one: str, other: str) -> str:
    """The first or the second, told by how the answer begins."""
    firsts, seconds = json.loads(one)["grammars"], json.loads(other)["grammars"]
    firsts[0]["name"], seconds[0]["name"] = "one", "other"
    return json.dumps({"grammars": [{"name": "top", "lark_grammar": "start: @one | @other"}, *firsts, *seconds]})


def _after(body: str, opening: str, marker: str, special: SpecialToken) -> str:
    """Anything up to a marker and white space, then the body. With an `opening` all before the body is optional."""
    grammars = json.loads(body)["grammars"]
    grammars[0]["name"] = "body"
    if special(marker) is not None:
        said = f"said: {ANYTHING} {_marker(marker, special)}"
    else:
        said = f"said[lazy]: /(?s:.*){re.escape(marker).replace('/', chr(92) + '/')}/"
    thoughts = f"({_marker(opening, special)} said /\\s{{0,4}}/)?" if opening else "said /\\s{0,4}/"
    top = f"start: {thoughts} @body\n{said}"
    return json.dumps({"grammars": [{"name": "top", "lark_grammar": top}, *grammars]})
