"""What the rules of calls have in common: literals with places in them, JSON values, the order of parameters."""

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER
from engine.grammar.literals import Literals, Unusable, escaped
from engine.grammar.spec import CalledTool

_PLACES = re.compile(f"({ID}|{NAME}|{NUMBER}|{KEY})")
_ANY_ID, _ANY_NUMBER = "/[A-Za-z0-9_-]{1,40}/", "/[0-9]{1,3}/"
ANY_KEY = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"

JsonOptions = Callable[[bool], Mapping[str, Any]]


class CallRules:
    """The rules of one grammar as they are made. `lines`: of Lark."""

    def __init__(self, literals: Literals, options: JsonOptions, id_chars: int, is_sorted: bool) -> None:
        """options: what llguidance is told about JSON, by whether a schema is lenient. id_chars: of ids, 0 = any.

        is_sorted: the model writes arguments in the order of their keys.
        """
        self.literals, self.is_sorted = literals, is_sorted
        self.lines: list[str] = []
        self._options, self._id_chars = options, id_chars
        self._names = itertools.count()

    def literal(self, text: str, name: str = "") -> str:
        """A text as a sequence of literals, control tokens and what may stand in its places; of a name, plain text."""
        parts = []
        for part in _PLACES.split(text):
            if part == ID:
                parts.append(f"/[A-Za-z0-9]{{{self._id_chars}}}/" if self._id_chars else _ANY_ID)
            elif part == NUMBER:
                parts.append(_ANY_NUMBER)
            elif part in (NAME, KEY):
                parts.append(json.dumps(name))
            elif part:
                parts.append(self.literals.sequence(part))
        return " ".join(parts)

    def rule(self, name: str, body: str) -> None:
        """One more rule."""
        self.lines.append(f"{name}: {body}")

    def new_name(self, kind: str) -> str:
        """A name that no rule has."""
        return f"{kind}_{next(self._names)}"

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


def texts_of(schema: Any) -> list[str] | None:
    """The strings that a schema lists, None when it lists none or others besides."""
    if not isinstance(schema, Mapping):
        return None
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        return None
    return values


def check_enforceable(schema: Any, tool: CalledTool, name: str) -> None:
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
