"""Tool calls as a grammar in Lark's notation, from how a model writes them. Syntax: llguidance's docs/syntax.md."""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.bundle.answer_format import (
    ID,
    KEY,
    NAME,
    NUMBER,
    CallFormat,
    JsonArguments,
    LiteralArguments,
    TaggedArguments,
)
from engine.grammar.literals import ANYTHING, Literals, Unusable, escaped, loaded
from engine.grammar.parameter_types import Types, resolved, types_of
from engine.grammar.spec import CalledTool, ToolCalls

_PLACES = re.compile(f"({ID}|{NAME}|{NUMBER}|{KEY})")
_ANY_ID, _ANY_NUMBER, _ANY_KEY = "/[A-Za-z0-9_-]{1,40}/", "/[0-9]{1,3}/", "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"
_STRING = frozenset(("string",))
DEEPEST = 8

JsonOptions = Callable[[bool], Mapping[str, Any]]


class CallGrammar:
    """The rules of one request's calls."""

    def __init__(self, calls: ToolCalls, literals: Literals, options: JsonOptions) -> None:
        """options: what llguidance is told about JSON, by whether a schema is lenient."""
        self._calls, self._form = calls, calls.form
        self._literals, self._options = literals, options
        self._lines: list[str] = []
        self._names = itertools.count()
        self._most = 1 if calls.form.between is None else calls.most

    def text(self) -> str:
        """The whole grammar; raises Unusable for parameters that cannot be enforced."""
        for number, tool in enumerate(self._calls.tools):
            self._tool(number, tool)
        self._rule("call", " | ".join(f"call_{number}" for number in range(len(self._calls.tools))))
        if self._calls.is_forced or self._calls.otherwise is not None:
            return "\n".join([f"start: {self._blocks(self._from_prompt(self._opening))}", *self._lines])
        return "\n".join([*self._with_text(), *self._lines])

    @property
    def _opening(self) -> str:
        """What is in front of the first call's name."""
        return self._form.opening + self._form.begin

    def _from_prompt(self, opening: str) -> str:
        """An opening without what the prompt has written of it."""
        return opening.removeprefix(self._calls.prefilled)

    def _blocks(self, opening: str) -> str:
        """One block of calls, the first opened like that; several where each call is a block of its own."""
        form = self._form
        if self._most == 1:
            return f"{self._literal(opening)} call {self._literal(form.closing)}"
        more = f"({self._literal((form.between or '') + form.begin)} call){_times(self._most)}"
        return f"{self._literal(opening)} call {more} {self._literal(form.closing)}"

    def _with_text(self) -> list[str]:
        """Start rules for text in which a call, once opened, is made well."""
        opening = self._opening.lstrip()
        mark = self._mark(opening)
        is_single = not (self._form.opening + self._form.closing).strip()
        count = "?" if not is_single else "*" if self._most == 0 else f"{{0,{self._most}}}"
        most, self._most = self._most, 1 if is_single else self._most
        behind = self._blocks(opening.removeprefix(mark))
        self._most = most
        around = " | ".join(
            f"({self._literal(text)})" for text in self._calls.around if self._literals.has_control(text)
        )
        unopened = f"~/(?s:.*){escaped(mark)}(?s:.*)/"
        said = f"(SAID | {around})*" if around else "SAID"
        number = self._literals.control(mark)
        if opening.startswith("{"):  # the whole answer is a call, told by its first character
            starts = f"start: SAID | {self._blocks(opening)}"
            return [starts, rf"SAID: /([^{{\s](?s:.*))?/ & {unopened}"]
        if self._calls.prefilled:  # the prompt has begun a call or a text, which the next word tells
            texts = [self._from_prompt(text) for text in self._calls.around if text.startswith(self._calls.prefilled)]
            told = " | ".join(f"{self._literal(text)} SAID" for text in texts) or "SAID"
            return [
                f"start: {self._blocks(self._from_prompt(self._opening))} | {told}",
                f"SAID: {ANYTHING} & {unopened}",
            ]
        if number is not None:
            start = f"start: {said} block{count}"
            return [start, f"block: <[{number}]> {behind} {said}", f"SAID: {ANYTHING} & {unopened}"]
        if self._literals.split(mark)[0][1] is not None:
            start = f"start: {said} block{count}"
            return [start, f"block: {self._literal(mark)} {behind} {said}", f"SAID: {ANYTHING}"]
        lines = [f"start: (head block){count} {said}", f"head[lazy]: /(?s:.*){escaped(mark)}/"]
        if around:
            lines[0] = f"start: ({around})* (head block ({around})*){count} {said}"
        return [*lines, f"block: {behind}", f"SAID: {ANYTHING} & {unopened}"]

    def _mark(self, opening: str) -> str:
        """What tells that calls begin; a control token as a whole."""
        first, number = self._literals.split(opening)[0]
        return first if number is not None and first.startswith(self._calls.mark) else self._calls.mark

    def _tool(self, number: int, tool: CalledTool) -> None:
        schema = {} if tool.parameters is None else loaded(tool.parameters, f"the parameters of '{tool.name}'")
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise Unusable(f"the parameters of '{tool.name}' must be a schema of type object")
        form = self._form
        is_json = isinstance(form.arguments, JsonArguments)
        name = json.dumps(tool.name)[1:-1] if is_json and form.begin.endswith('"') else tool.name
        frame = f"{json.dumps(name)} {self._literal(form.named, name)}"
        match form.arguments:
            case JsonArguments():
                arguments = f"{self._json(schema, schema, tool.is_lenient)} {self._literal(form.end)}"
            case TaggedArguments():
                arguments = _Tagged(self, form, form.arguments, tool, schema, f"t{number}").rule()
            case LiteralArguments():
                arguments = _Literals(self, form.arguments, tool, schema, f"t{number}").rule()
                arguments = f"{arguments} {self._literal(form.end)}"
        self._rule(f"call_{number}", f"{frame} {arguments}")

    def _literal(self, text: str, name: str = "") -> str:
        """A text as a sequence of literals, control tokens and what may stand in its places; of a name, plain text."""
        parts = []
        for part in _PLACES.split(text):
            if part == ID:
                parts.append(f"/[A-Za-z0-9]{{{self._calls.id_chars}}}/" if self._calls.id_chars else _ANY_ID)
            elif part == NUMBER:
                parts.append(_ANY_NUMBER)
            elif part in (NAME, KEY):
                parts.append(json.dumps(name))
            elif part:
                parts.append(self._literals.sequence(part))
        return " ".join(parts)

    def _rule(self, name: str, body: str) -> None:
        self._lines.append(f"{name}: {body}")

    def _json(self, schema: Any, root: Mapping[str, Any], is_lenient: bool) -> str:
        """A rule for a JSON value that a part of a schema accepts."""
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        whole = schema if isinstance(schema, dict) else {}
        if whole is root:
            whole = {"type": "object"} | whole
        name = self.new_name("json")
        self._rule(name, f"%json {json.dumps(shared | whole | dict(self._options(is_lenient)))}")
        return name

    def new_name(self, kind: str) -> str:
        """A name that no rule has."""
        return f"{kind}_{next(self._names)}"

    # What the writers of arguments use.
    literal, rule, json_value = _literal, _rule, _json

    @property
    def is_sorted(self) -> bool:
        """The model writes arguments in the order of their keys."""
        return self._form.is_sorted

    @property
    def literals(self) -> Literals:
        """Texts and control tokens."""
        return self._literals


class _Parameters:
    """The parameters of one function in the order of its schema."""

    def __init__(self, schema: Mapping[str, Any], is_sorted: bool = False) -> None:
        properties = schema.get("properties")
        self.schemas: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required")
        self._required = set(required) if isinstance(required, list) else set()
        self.names = sorted(self.schemas) if is_sorted else list(self.schemas)
        unknown = self._required - set(self.names)
        if unknown:
            raise Unusable(f"it requires the parameter '{min(unknown)}', which has no schema")

    def following(self, start: int) -> Sequence[int]:
        """Which parameters may come next: up to the first that must."""
        found = []
        for number in range(start, len(self.names)):
            found.append(number)
            if self.names[number] in self._required:
                break
        return found

    def may_end(self, start: int) -> bool:
        """Whether nothing has to follow."""
        return not any(name in self._required for name in self.names[start:])


class _Tagged:
    """Arguments one after the other, strings as they are."""

    def __init__(
        self,
        grammar: CallGrammar,
        call: CallFormat,
        form: TaggedArguments,
        tool: CalledTool,
        schema: Mapping[str, Any],
        prefix: str,
    ) -> None:
        self._grammar, self._form, self._tool, self._schema = grammar, form, tool, schema
        self._end, self._prefix = call.end, prefix
        self._parameters = _Parameters(schema, grammar.is_sorted)

    def rule(self) -> str:
        """From behind the name to the end of the call."""
        first = f"{self._prefix}_0"
        if not self._parameters.names:
            self._unknown(first)
        for number in range(len(self._parameters.names)):
            self._next(number)
        options = [f"{self._grammar.literal(self._form.before)} {first}"]
        if self._parameters.may_end(0):
            options.append(self._grammar.literal(self._end))
        return f"({' | '.join(options)})"

    def _next(self, start: int) -> None:
        """The rule for a key and all that follows, where parameters from `start` on may come."""
        options = []
        for number in self._parameters.following(start):
            name = self._parameters.names[number]
            schema = self._parameters.schemas[name]
            types = types_of(schema, self._schema)
            assign = self._assign(types)
            options.append(
                f"{json.dumps(name)} {self._grammar.literal(assign)} {self._value(name, schema, types, number + 1)}"
            )
        self._grammar.rule(f"{self._prefix}_{start}", " | ".join(options))

    def _unknown(self, name: str) -> None:
        """Any keys with any text."""
        key = f"{_ANY_KEY} {self._grammar.literal(self._form.assign.get('string', ''))}"
        self._grammar.rule(name, f"{key} {self._text(KEY, name, may_end=True)}")

    def _assign(self, types: Types | None) -> str:
        own = next((kind for kind in self._form.assign if types is not None and kind in types), "string")
        return self._form.assign.get("string" if types is None or "string" in types else own, "")

    def _value(self, name: str, schema: Any, types: Types | None, following: int) -> str:
        grammar, form = self._grammar, self._form
        is_last = following >= len(self._parameters.names)
        rest = "" if is_last else f"{self._prefix}_{following}"
        may_end = self._parameters.may_end(following)
        texts = _texts_of(resolved(schema, self._schema))
        if texts is not None:
            value = f"({' | '.join(map(json.dumps, texts))})"
        elif types is None or "string" in types:
            _check_enforceable(schema, self._tool, name)
            return self._text(name, rest, may_end)
        elif form.item and types & {"object", "array"}:
            value = self._element(schema, form.after.replace(KEY, name), 0)
        elif types == frozenset(("boolean",)) and form.words != ("true", "false"):
            value = f"({' | '.join(map(json.dumps, (*form.words, 'true', 'false')))})"
        else:
            value = grammar.json_value(schema, self._schema, self._tool.is_lenient)
        is_nested = texts is None and bool(form.item) and bool(types and types & {"object", "array"})
        after = "" if is_nested else grammar.literal(form.after, name)
        options = [f"{grammar.literal(form.before)} {rest}"] if rest else []
        options += [grammar.literal(self._end)] if may_end else []
        return f"{value} {after} ({' | '.join(options)})"

    def _text(self, name: str, rest: str, may_end: bool) -> str:
        """A string and what follows: it ends where another argument or the end of the call follows its closing tag."""
        after = self._form.after.replace(KEY, name) if name != KEY else self._form.after
        more, last = after + self._form.before, after + self._end
        one, other = (self._grammar.literals.split(text.lstrip())[0] for text in (more, last))
        is_told = not one[0].startswith(other[0].rstrip()) and not other[0].startswith(one[0].rstrip())
        if one[1] is not None or not is_told:
            return self._closed_text(after, rest, may_end)
        options = [f"{self._up_to(more, last)} {rest}"] if rest else []
        options += [self._up_to(last, more)] if may_end else []
        return f"({' | '.join(options)})"

    def _up_to(self, literal: str, other: str) -> str:
        """Text that `literal` ends, without `other` in it."""
        rule, split = self._grammar.new_name("text"), self._grammar.literals.split
        own, others = (split(text.lstrip())[0][0].rstrip() for text in (literal, other))
        spaces = literal[: len(literal) - len(literal.lstrip())]
        rest = literal.lstrip()[len(own) :]
        self._grammar.rule(f"{rule}[lazy]", f"/(?s:.*){_loose(spaces + own)}/ & ~/(?s:.*){_loose(others)}(?s:.*)/")
        return f"{rule} {self._grammar.literal(rest)}"

    def _closed_text(self, after: str, rest: str, may_end: bool) -> str:
        """The same where control tokens follow: text ends at the first of them, or at the closing tag."""
        grammar, rule = self._grammar, self._grammar.new_name("text")
        beginning, number = grammar.literals.split(after.lstrip())[0]
        behind = after.lstrip()
        if number is None:
            beginning = beginning.rstrip()
            behind = behind[len(beginning) :]
            grammar.rule(f"{rule}[lazy]", f"/(?s:.*){_loose(after[: len(after) - len(after.lstrip())] + beginning)}/")
        else:
            grammar.rule(rule, ANYTHING)
        options = [f"{grammar.literal(behind + self._form.before)} {rest}"] if rest else []
        options += [grammar.literal(behind + self._end)] if may_end else []
        return f"{rule} ({' | '.join(options)})"

    def _element(self, schema: Any, closing: str, depth: int) -> str:
        """The content of nested tags, and what closes it."""
        grammar = self._grammar
        known = resolved(schema, self._schema)
        types = types_of(known, self._schema)
        known = known if isinstance(known, Mapping) else {}
        end = grammar.literal(closing)
        if depth < DEEPEST and types is not None and "array" in types:
            return f"({self._tag(self._form.item, known.get('items'), depth)})* {end}"
        if depth < DEEPEST and isinstance(known.get("properties"), Mapping):
            required = known.get("required") or ()
            tags = [
                self._tag(name, inner, depth) + ("" if name in required else "?")
                for name, inner in known["properties"].items()
            ]
            return f"{' '.join(tags)} {end}"
        if types is None or types & {"string", "object"}:
            text = self._element_text(closing)
            is_text = types is None or "string" in types
            tags_end = "" if types is not None and "object" not in types else f"({self._any_tag()})* {end}"
            return f"({' | '.join(filter(None, (text if is_text else '', tags_end)))})"
        return f"{grammar.json_value(schema, self._schema, self._tool.is_lenient)} {end}"

    def _element_text(self, closing: str) -> str:
        """Text up to what closes its tag."""
        rule = self._grammar.new_name("element")
        if self._grammar.literals.split(closing)[0][1] is not None:
            self._grammar.rule(rule, ANYTHING)
            return f"{rule} {self._grammar.literal(closing)}"
        self._grammar.rule(f"{rule}[lazy]", f"/(?s:.*){escaped(closing)}/")
        return rule

    def _any_tag(self) -> str:
        """A tag of any name with text in it; that the names at its ends agree is not enforced."""
        before, _, behind = self._form.after.partition(KEY)
        name = f"{self._grammar.literal(self._form.before)} {_ANY_KEY}"
        inside = f"{name} {self._grammar.literal(self._form.assign.get('string', ''))} {self._element_text(before)}"
        return f"{inside} {_ANY_KEY} {self._grammar.literal(behind)}"

    def _tag(self, name: str, schema: Any, depth: int) -> str:
        before, assign = (self._grammar.literal(text) for text in (self._form.before, self._form.assign["string"]))
        closing = self._form.after.replace(KEY, name)
        return f"({before} {json.dumps(name)} {assign} {self._element(schema, closing, depth + 1)})"


class _Literals:
    """Arguments as literals."""

    def __init__(
        self, grammar: CallGrammar, form: LiteralArguments, tool: CalledTool, schema: Mapping[str, Any], prefix: str
    ) -> None:
        self._grammar, self._form, self._tool, self._schema, self._prefix = grammar, form, tool, schema, prefix
        self._parameters = _Parameters(schema, grammar.is_sorted)

    def rule(self) -> str:
        """All arguments, without what is around them."""
        grammar, between = self._grammar, self._grammar.literal(self._form.between)
        if not self._parameters.names:
            pair = f"{_ANY_KEY} {grammar.literal(self._form.assign)} {self._any(0)}"
            return f"({pair} ({between} {pair})*)?"
        for start in range(len(self._parameters.names)):
            options = []
            for number in self._parameters.following(start):
                name = self._parameters.names[number]
                value = self._value(self._parameters.schemas[name], 0, self._form.is_raw)
                following = number + 1
                more = f"{between} {self._prefix}_{following}" if following < len(self._parameters.names) else ""
                if more and self._parameters.may_end(following):
                    more = f"({more})?"
                options.append(f"{json.dumps(name)} {grammar.literal(self._form.assign)} {value} {more}")
            grammar.rule(f"{self._prefix}_{start}", " | ".join(options))
        return f"{self._prefix}_0" + ("?" if self._parameters.may_end(0) else "")

    @property
    def _is_python(self) -> bool:
        return self._form.quote in ("'", '"')

    def _value(self, schema: Any, depth: int, is_raw: bool = False) -> str:
        known = resolved(schema, self._schema)
        types = types_of(known, self._schema)
        texts = _texts_of(known)
        if texts is not None:
            quote = self._form.quote
            shown = [text if not self._is_python else repr(text)[1:-1] for text in texts]
            marks = self._grammar.literal(quote)
            return f"({' | '.join(f'{marks} {json.dumps(text)} {marks}' for text in shown)})"
        if types is None or depth > DEEPEST or not isinstance(known, Mapping):
            return self._any(depth)
        return f"({' | '.join(self._of_type(kind, known, depth, is_raw) for kind in sorted(types))})"

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int, is_raw: bool) -> str:
        if kind == "string":
            _check_enforceable(schema, self._tool, "")
            return self._string(is_raw)
        if kind == "boolean":
            return '("True" | "False")' if self._is_python else '("true" | "false")'
        if kind == "null":
            return '"None"' if self._is_python else '("null" | "None")'
        if kind == "array":
            item = self._value(schema.get("items", {}), depth + 1)
            return f'"[" ({item} ("," /[ ]?/ {item})*)? "]"'
        if kind == "object" and not self._is_python:
            return self._object(schema, depth)
        return self._grammar.json_value({**schema, "type": kind}, self._schema, self._tool.is_lenient)

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties, required = schema.get("properties"), schema.get("required") or ()
        if not isinstance(properties, Mapping) or not properties:
            pair = f'{_ANY_KEY} ":" {self._any(depth + 1)}'
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        parameters = _Parameters({"properties": properties, "required": list(required)}, self._grammar.is_sorted)
        prefix = self._grammar.new_name("object")
        for start in range(len(parameters.names)):
            options = []
            for number in parameters.following(start):
                name, following = parameters.names[number], number + 1
                more = f'"," {prefix}_{following}' if following < len(parameters.names) else ""
                if more and parameters.may_end(following):
                    more = f"({more})?"
                value = self._value(properties[name], depth + 1)
                options.append(f"{json.dumps(name + ':')} {value} {more}")
            self._grammar.rule(f"{prefix}_{start}", " | ".join(options))
        return f'"{{" {prefix}_0{"?" if parameters.may_end(0) else ""} "}}"'

    def _any(self, depth: int) -> str:
        """Any value; of containers, some levels."""
        if depth > 2:
            return f"({self._string(is_raw=False)} | {self._scalar()})"
        item = self._any(depth + 1)
        pair = f'{_ANY_KEY if not self._is_python else self._string(is_raw=False)} ":" /[ ]?/ {item}'
        listed = f'"[" ({item} ("," /[ ]?/ {item})*)? "]"'
        return (
            f'({self._string(is_raw=False)} | {self._scalar()} | {listed} | "{{" ({pair} ("," /[ ]?/ {pair})*)? "}}")'
        )

    def _scalar(self) -> str:
        words = '"True" | "False" | "None"' if self._is_python else '"true" | "false" | "null"'
        return f"/-?(0|[1-9][0-9]*)(\\.[0-9]+)?/ | {words}"

    def _string(self, is_raw: bool) -> str:
        if not self._is_python:
            quote = self._form.quote
            if self._grammar.literals.control(quote) is not None:
                return f"{self._grammar.literal(quote)} {ANYTHING} {self._grammar.literal(quote)}"
            rule = self._grammar.new_name("text")
            self._grammar.rule(f"{rule}[lazy]", f"/(?s:.*){escaped(quote)}/")
            return f"{self._grammar.literal(quote)} {rule}"
        if is_raw:  # a quote in it is followed by what cannot follow an argument
            return r"""(/'([^']|'\s*[^\s,)'])*'/ | /"([^"]|"\s*[^\s,)"])*"/)"""
        return r"""(/'([^'\\\n]|\\.)*'/ | /"([^"\\\n]|\\.)*"/)"""


def _texts_of(schema: Any) -> list[str] | None:
    """The strings that a schema lists, None when it lists none or others besides."""
    if not isinstance(schema, Mapping):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        return None
    return values


def _check_enforceable(schema: Any, tool: CalledTool, name: str) -> None:
    """Strings that are written as they are can be any text: what a strict schema demands besides is refused."""
    asked = [
        key for key in ("pattern", "format", "minLength", "maxLength") if isinstance(schema, Mapping) and key in schema
    ]
    if asked and not tool.is_lenient:
        raise Unusable(
            f"'{asked[0]}' of a string parameter of the strict function '{tool.name}' cannot be enforced in the way "
            "this model writes calls"
        )


def _times(most: int) -> str:
    """How often more calls may follow the first."""
    return "*" if most == 0 else f"{{0,{most - 1}}}"


def _loose(text: str) -> str:
    """A pattern of a literal in which any white space may stand where it has some."""
    return r"\s*".join(escaped(part) for part in re.split(r"\s+", text))
