"""The grammar compiler, a process of its own: `python -m engine.grammar.compiler <tokenizer.json> <vocab> <end id>...`.
An empty frame says that it is up. The first frame it reads is a `CompilerOpening`, answered by an empty `Compiled` or
by why the tokenizer cannot be used; each later one is a `GrammarSpec`, compiled in its time or the end of the process.
Syntax of Lark and of %json: llguidance's docs/syntax.md."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from llguidance import LLMatcher, LLTokenizer, grammar_from

from engine.grammar.call_grammar import CallGrammar
from engine.grammar.call_rules import ANYTHING, WHITESPACE, Literals, Unusable, escaped, loaded
from engine.grammar.masks import GrammarFailed, checked, control_tokens, load_tokenizer, new_matcher
from engine.grammar.spec import (
    Cfg,
    Choice,
    Compiled,
    Form,
    GrammarSpec,
    JsonSchema,
    Regex,
    TextForm,
    ToolCalls,
    decode_opening,
    decode_spec,
    encode,
)
from engine.isolation.framing import Opened, serve


def serialised(spec: GrammarSpec, literals: Literals) -> str:
    """The grammar of a form. Unusable when it cannot be read; whether llguidance accepts it is not known yet."""
    body = _form(spec.form, spec.wrap, literals)
    return _after(body, spec, literals) if spec.after else body


def unforced(grammar: str, controls: Sequence[str]) -> str:
    """The same grammar, spelled freely where it holds the text of a control token. llguidance tokenises text that can
    only go on in one way, takes such a text for the token, and fails on it."""
    plain = grammar.replace("\\", "")
    if not any(text in plain or json.dumps(text)[1:-1].replace("\\", "") in plain for text in controls):
        return grammar
    grammars = json.loads(grammar)["grammars"]
    if not grammars[0].get("lark_grammar"):
        grammars[0]["name"] = "body"
        grammars.insert(0, {"name": "top", "lark_grammar": "start: @body"})
    grammars[0]["lark_grammar"] = '%llguidance {"no_forcing": true}\n' + grammars[0]["lark_grammar"]
    return json.dumps({"grammars": grammars})


def _form(form: Form, wrap: tuple[str, str], literals: Literals) -> str:
    if isinstance(form, ToolCalls):
        calls = _lark(CallGrammar(form, literals, _options).text())
        return calls if form.otherwise is None else _either(calls, _form(form.otherwise, wrap, literals))
    return _wrapped(_text_form(form), wrap, literals)


def _text_form(form: TextForm) -> str:
    match form:
        case JsonSchema():
            return _json_schema(form)
        case Regex():
            return LLMatcher.grammar_from_regex(form.pattern)
        case Choice():
            texts = " | ".join(json.dumps(option) for option in dict.fromkeys(form.options))
            return _lark(f"start: CHOICE\nCHOICE: {texts}")
        case Cfg(text=text):
            try:
                return _lark(grammar_from("gbnf", text) if "::=" in text else text)
            except ValueError as error:
                raise Unusable(str(error)) from None


def _json_schema(form: JsonSchema) -> str:
    schema = loaded(form.schema, "the schema")
    schema = {} if schema is True else schema
    if not isinstance(schema, dict):
        raise Unusable("the schema must be an object")
    return LLMatcher.grammar_from_json_schema(json.dumps(schema | _options(form.is_lenient, form.whitespace)))


def _options(is_lenient: bool, whitespace: str | None = None) -> dict[str, Any]:
    """Whatever the caller wrote under x-guidance is replaced."""
    flexible = {"whitespace_flexible": False} if whitespace == "" else {"whitespace_pattern": whitespace or WHITESPACE}
    # With escapes of control characters alone, a model that begins one of é has to end it as one of those.
    return {"x-guidance": flexible | {"lenient": is_lenient, "json_allow_general_unicode_escapes": True}}


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _either(one: str, other: str) -> str:
    """The first or the second, told by how the answer begins."""
    firsts, seconds = json.loads(one)["grammars"], json.loads(other)["grammars"]
    firsts[0]["name"], seconds[0]["name"] = "one", "other"
    return json.dumps({"grammars": [{"name": "top", "lark_grammar": "start: @one | @other"}, *firsts, *seconds]})


def _wrapped(body: str, wrap: tuple[str, str], literals: Literals) -> str:
    if not any(wrap):
        return body
    opening, closing = (f"({literals.sequence(text)})?" if text else "" for text in wrap)
    return _topped(body, f"start: {opening} @wrapped {closing}", "wrapped")


def _after(body: str, spec: GrammarSpec, literals: Literals) -> str:
    """Anything up to a marker and white space, then the body. With an `opening` all before the body is optional."""
    beginning, number = literals.split(spec.after)[0]
    if number is not None:
        said = f"said: {ANYTHING} {literals.sequence(spec.after)}"
    else:
        rest = literals.sequence(spec.after[len(beginning) :]) if len(beginning) < len(spec.after) else ""
        said = f"said_text[lazy]: /(?s:.*){escaped(beginning)}/\nsaid: said_text {rest}"
    thoughts = r"said /\s{0,4}/" + (f" {literals.sequence(spec.restart)}" if spec.restart else "")
    if spec.opening:
        thoughts = f"({literals.sequence(spec.opening)} {thoughts})?"
    return _topped(body, f"start: {thoughts} @body\n{said}", "body")


def _topped(body: str, top: str, name: str) -> str:
    grammars = json.loads(body)["grammars"]
    grammars[0]["name"] = name
    return json.dumps({"grammars": [{"name": f"{name}_top", "lark_grammar": top}, *grammars]})


MEMORY_BYTES = 6 * 1024**3  # of address space; a grammar of the largest size allowed takes a small part


def main(arguments: list[str]) -> int:
    """Compile until end of input; 3 when the tokenizer cannot be used (said in the first answer)."""
    tokenizer_json, vocab, ends = Path(arguments[0]), int(arguments[1]), [int(each) for each in arguments[2:]]

    def opened(body: bytes) -> Opened:
        try:
            tokenizer = load_tokenizer(tokenizer_json, vocab, ends)
        except GrammarFailed as error:
            return Opened(encode(Compiled(error=str(error))))
        controls = control_tokens(tokenizer)

        def answer(question: bytes) -> bytes:
            return encode(compiled(decode_spec(question), tokenizer, controls))

        return Opened(encode(Compiled()), decode_opening(body).longest_s, answer)

    return serve(MEMORY_BYTES, opened)


def compiled(spec: GrammarSpec, tokenizer: LLTokenizer, controls: Mapping[str, int]) -> Compiled:
    """Make the grammar and try it: what fails later in the worker would fail here. `controls`: `control_tokens`. Where
    calls cannot be had, the first tool that cannot be called alone is at fault."""
    found, form = _tried(spec, tokenizer, controls), spec.form
    if found.error and isinstance(form, ToolCalls):
        for tool in form.tools:
            alone = GrammarSpec(msgspec.structs.replace(form, tools=(tool,), is_forced=True, otherwise=None))
            if error := _tried(alone, tokenizer, controls).error:
                return Compiled(error=error, tool=tool.name)
    return found


def _tried(spec: GrammarSpec, tokenizer: LLTokenizer, controls: Mapping[str, int]) -> Compiled:
    try:
        grammar = unforced(serialised(spec, Literals(controls)), tuple(controls))
        matcher = new_matcher(tokenizer, grammar)
        allowed = matcher.compute_bitmask()
        checked(matcher)
    except (Unusable, GrammarFailed) as error:
        return Compiled(error=str(error))
    except (ValueError, RecursionError) as error:  # llguidance's words for an argument it cannot read
        return Compiled(error=f"it cannot be read: {error}")
    return Compiled(grammar) if any(allowed) else Compiled(error="no text satisfies it")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (msgspec.MsgspecError, KeyboardInterrupt):
        sys.exit(1)
