"""What the rules of calls have in common: literals with places in them, JSON values, the order of parameters."""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER, LiteralArguments
from engine.grammar.spec import CalledTool, resolved, types_of

ANYTHING = "/(?s:.*)/"
# Of JSON. Bounded: with any amount allowed a model can write line breaks until max_tokens. Enough for deep indentation.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"
_JSON_PARTS = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')


class Unusable(ValueError):
    """The form cannot be made into a grammar; the message says why."""


class Literals:
    """Cuts texts where control tokens stand. controls: their ids by their texts."""

    def __init__(self, controls: Mapping[str, int]) -> None:
        self._controls = controls
        ordered = sorted((text for text in controls if text), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def control(self, text: str) -> int | None:
        return self._controls.get(text)

    def split(self, text: str) -> list[tuple[str, int | None]]:
        """The parts of a text, each with its id if it is a control token."""
        parts: list[tuple[str, int | None]] = []
        start = 0
        for found in self._pattern.finditer(text) if self._pattern is not None else ():
            if found.start() > start:
                parts.append((text[start : found.start()], None))
            parts.append((found[0], self._controls[found[0]]))
            start = found.end()
        return [*parts, (text[start:], None)] if start < len(text) or not parts else parts

    def sequence(self, text: str) -> str:
        parts = self.split(text)
        return " ".join(json.dumps(part) if number is None else f"<[{number}]>" for part, number in parts)

    def has_control(self, text: str) -> bool:
        return any(number is not None for _, number in self.split(text))


def escaped(text: str) -> str:
    """A pattern of Lark's that only this text matches."""
    return re.escape(text).replace("/", r"\/")


def loaded(text: str, what: str) -> Any:
    """The value of a JSON text; Unusable names it."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{what} is not JSON: {error}") from None


# Where a schema has one of these, parameters may be named elsewhere than in its properties.
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf", "if", "$ref")


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a function as a call writes them: those that its schema names, and no others. Small models
    write the schema itself where they may: {"type": "object"} as arguments of a function that takes none."""
    names = schema.get("properties")
    if not isinstance(names, Mapping) or any(key in schema for key in _OPEN):
        return schema
    is_told = all(name in names for name in required_of(schema))
    return schema | {"additionalProperties": False} if is_told else schema


def required_of(schema: Mapping[str, Any]) -> Sequence[str]:
    """The names that a schema lists as required; Unusable where something in that list is no name."""
    required = schema.get("required")
    names = required if isinstance(required, list) else ()
    if not all(isinstance(name, str) for name in names):
        raise Unusable("'required' must be a list of names of parameters")
    return names


_PLACES = re.compile(f"({ID}|{NAME}|{NUMBER}|{KEY})")
_ANY_ID, _ANY_NUMBER = "/[A-Za-z0-9_-]{1,40}/", "/[0-9]{1,3}/"
ANY_KEY = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"

JsonOptions = Callable[[bool], Mapping[str, Any]]


class CallRules:
    """The rules of one grammar as they are made. `lines`: of Lark."""

    def __init__(self, literals: Literals, options: JsonOptions, id_chars: int, is_sorted: bool) -> None:
        """options: what llguidance is told about JSON, by whether a schema is lenient. id_chars: of ids, 0 = any.
        is_sorted: the model writes arguments in the order of their keys."""
        self.literals, self.is_sorted = literals, is_sorted
        self.lines: list[str] = []
        self._options, self._id_chars = options, id_chars
        self._names = itertools.count()

    def literal(self, text: str, name: str = "") -> str:
        """A text as a sequence of literals, control tokens and what may stand in its places; of a name, plain text."""
        identifier = f"/[A-Za-z0-9]{{{self._id_chars}}}/" if self._id_chars else _ANY_ID
        places = {ID: identifier, NUMBER: _ANY_NUMBER, NAME: json.dumps(name), KEY: json.dumps(name)}
        parts = filter(None, _PLACES.split(text))
        return " ".join(places[part] if part in places else self.literals.sequence(part) for part in parts)

    def json_parts(self, text: str) -> str:
        """Some of a JSON text, part by part, as llguidance cuts the JSON of a schema."""
        return " SPACE? ".join(map(self.literal, _JSON_PARTS.findall(text)))

    def rule(self, name: str, body: str) -> None:
        self.lines.append(f"{name}: {body}")

    def new_name(self, kind: str) -> str:
        return f"{kind}_{next(self._names)}"

    def pairs(self, prefix: str, parameters: "Parameters", between: str, pair_of: Callable[[str], str]) -> str:
        """Parameters with their values in order, without those that may be left out. pair_of: one of that name."""
        for start in range(len(parameters.names)):
            options = []
            for number in parameters.following(start):
                following = number + 1
                more = f"{between} {prefix}_{following}" if following < len(parameters.names) else ""
                if more and parameters.may_end(following):
                    more = f"({more})?"
                options.append(f"{pair_of(parameters.names[number])} {more}")
            self.rule(f"{prefix}_{start}", " | ".join(options))
        return f"{prefix}_0" + ("?" if parameters.may_end(0) else "")

    def json_value(self, schema: Any, root: Mapping[str, Any], is_lenient: bool) -> str:
        """The name of a rule for a JSON value that a part of a schema accepts."""
        shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
        whole = schema if isinstance(schema, dict) else {}
        if whole is root:
            whole = {"type": "object"} | whole
        name = self.new_name("json")
        self.rule(name, f"%json {json.dumps(shared | whole | dict(self._options(is_lenient)))}")
        return name


class Parameters:
    """The parameters of one function in the order of its schema."""

    def __init__(self, schema: Mapping[str, Any], is_sorted: bool = False) -> None:
        properties = schema.get("properties")
        self.schemas: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
        self._required = set(required_of(schema))
        self.names = sorted(self.schemas) if is_sorted else list(self.schemas)
        unknown = self._required - set(self.names)
        if unknown:
            raise Unusable(f"it requires the parameter '{min(unknown)}', which has no schema")

    def following(self, start: int) -> Sequence[int]:
        """Which parameters may come next: up to the first that must."""
        needed = (number for number in range(start, len(self.names)) if self.names[number] in self._required)
        return range(start, next(needed, len(self.names) - 1) + 1)

    def may_end(self, start: int) -> bool:
        return not any(name in self._required for name in self.names[start:])


def texts_of(schema: Any) -> list[str] | None:
    """The strings that a schema lists, None when it lists none or others besides."""
    if not isinstance(schema, Mapping):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        return None
    return values


def check_enforceable(schema: Any, tool: CalledTool) -> None:
    """Strings that are written as they are can be any text: what a strict schema demands besides is refused."""
    asked = [
        key for key in ("pattern", "format", "minLength", "maxLength") if isinstance(schema, Mapping) and key in schema
    ]
    if asked and not tool.is_lenient:
        raise Unusable(
            f"'{asked[0]}' of a string parameter of the strict function '{tool.name}' cannot be enforced in the way "
            "this model writes calls"
        )


def loose(text: str) -> str:
    """A pattern of a literal in which any white space may stand where it has some."""
    return r"\s*".join(escaped(part) for part in re.split(r"\s+", text))


DEEPEST = 8


class LiteralRules:
    def __init__(
        self, grammar: CallRules, form: LiteralArguments, tool: CalledTool, schema: Mapping[str, Any], prefix: str
    ) -> None:
        self._grammar, self._form, self._tool, self._schema, self._prefix = grammar, form, tool, schema, prefix
        self._parameters = Parameters(schema, grammar.is_sorted)

    def rule(self) -> str:
        grammar, between = self._grammar, self._grammar.literal(self._form.between)
        if not self._parameters.names:
            pair = f"{ANY_KEY} {grammar.literal(self._form.assign)} {self._any(0)}"
            return f"({pair} ({between} {pair})*)?"

        def pair_of(name: str) -> str:
            value = self._value(self._parameters.schemas[name], 0, self._form.is_raw)
            return f"{json.dumps(name)} {grammar.literal(self._form.assign)} {value}"

        return grammar.pairs(self._prefix, self._parameters, between, pair_of)

    def value(self, schema: Any) -> str:
        """A literal that a schema accepts. Unusable where a strict schema demands more."""
        return self._value(schema, 0)

    @property
    def _is_python(self) -> bool:
        return self._form.quote in ("'", '"')

    def _value(self, schema: Any, depth: int, is_raw: bool = False) -> str:
        known = resolved(schema, self._schema)
        types = types_of(known, self._schema)
        texts = texts_of(known)
        if texts is not None:
            shown = [text if not self._is_python else repr(text)[1:-1] for text in texts]
            marks = self._grammar.literal(self._form.quote)
            return f"({' | '.join(f'{marks} {json.dumps(text)} {marks}' for text in shown)})"
        if types is None or depth > DEEPEST or not isinstance(known, Mapping):
            return self._any(depth)
        return f"({' | '.join(self._of_type(kind, known, depth, is_raw) for kind in sorted(types))})"

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int, is_raw: bool) -> str:
        if kind == "string":
            check_enforceable(schema, self._tool)
            return self._string(is_raw)
        if kind == "boolean":
            return '("True" | "False")' if self._is_python else '("true" | "false")'
        if kind == "null":
            return '"None"' if self._is_python else '("null" | "None")'
        if kind == "array":
            item = self._value(schema.get("items", {}), depth + 1)
            return f'"[" ({item} ("," /[ ]?/ {item})*)? "]"'
        if kind == "object":
            return self._object(schema, depth)
        return self._grammar.json_value({**schema, "type": kind}, self._schema, self._tool.is_lenient)

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        if not self._is_python:
            return self._pairs(schema, depth)
        whole = self._grammar.json_value({**schema, "type": "object"}, self._schema, self._tool.is_lenient)
        try:
            return f"({self._pairs(schema, depth)} | {whole})"
        except Unusable:  # strict, and no text of Python's can be held to it
            return whole

    def _pairs(self, schema: Mapping[str, Any], depth: int) -> str:
        properties = schema.get("properties")
        between = f'"," {self._space}'
        if not isinstance(properties, Mapping) or not properties:
            key = self._string(is_raw=False) if self._is_python else ANY_KEY
            more = schema.get("additionalProperties")
            pair = f'{key} ":" {self._space} {self._value(more if isinstance(more, Mapping) else {}, depth + 1)}'
            return '"{" "}"' if more is False else f'"{{" ({pair} ({between} {pair})*)? "}}"'
        parameters = Parameters(schema, self._grammar.is_sorted)

        def pair_of(name: str) -> str:
            shown = [repr(name), json.dumps(name, ensure_ascii=False)] if self._is_python else [name]
            key = f"({' | '.join(map(json.dumps, shown))})"
            return f'{key} ":" {self._space} {self._value(properties[name], depth + 1)}'

        pairs = self._grammar.pairs(self._grammar.new_name("object"), parameters, between, pair_of)
        return f'"{{" {pairs} "}}"'

    @property
    def _space(self) -> str:
        return "/[ ]?/" if self._is_python else ""

    def _any(self, depth: int) -> str:
        if depth > 2:
            return f"({self._string(is_raw=False)} | {self._scalar()})"
        item = self._any(depth + 1)
        pair = f'{ANY_KEY if not self._is_python else self._string(is_raw=False)} ":" /[ ]?/ {item}'
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
