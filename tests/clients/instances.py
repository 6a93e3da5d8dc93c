"""The shortest instance of a JSON schema that takes what a message names: numbers, quoted words, names."""

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
QUOTED = re.compile(r"\"([^\"\n]+)\"|'([^'\n]+)'|“([^”\n]+)”")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+(?: [A-Z][a-z]+)*")
FORMATS = {"date": "2026-01-01", "time": "00:00:00Z", "date-time": "2026-01-01T00:00:00Z", "email": "a@b.c"}
FORMATS |= {"uuid": "00000000-0000-4000-8000-000000000000", "uri": "a:b", "ipv4": "1.1.1.1"}
DEEPEST = 40


@dataclass(slots=True)
class Named:
    """What a message names, each used once, in order."""

    message: str
    numbers: deque[str] = field(default_factory=deque)
    words: deque[str] = field(default_factory=deque)

    @classmethod
    def of(cls, message: str) -> "Named":
        """Read a message."""
        words = ["".join(groups) for groups in QUOTED.findall(message)]
        return cls(message, deque(NUMBER.findall(message)), deque(words or NAME.findall(message)))


def instance(schema: Any, named: Named, root: Any = None, depth: int = 0) -> Any:
    """An instance of `schema`; keywords it does not know are ignored."""
    root = schema if root is None else root
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return {} if not depth else None
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if values:
        return next((value for value in values if str(value) in named.message), values[0])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return instance(schema[key][0], named, root, depth + 1)
    if "$ref" in schema:
        return instance(_resolved(schema["$ref"], root), named, root, depth + 1)
    if "allOf" in schema:
        merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            merged |= _resolved(part["$ref"], root) if "$ref" in part else part
        return instance(merged, named, root, depth + 1)
    return _typed(schema, named, root, depth)


def _typed(schema: Mapping[str, Any], named: Named, root: Any, depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema or not depth else "string")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), "null")
    match kind:
        case "object":
            required = schema.get("required", ())
            parts = schema.get("properties", {}).items()
            return {key: instance(part, named, root, depth + 1) for key, part in parts if key in required}
        case "array":
            return [
                instance(schema.get("items", {"type": "integer"}), named, root, depth + 1)
                for _ in range(schema.get("minItems", 0))
            ]
        case "integer" | "number":
            return _number(schema, named, whole=kind == "integer")
        case "boolean":
            return False
        case "null":
            return None
    return _text(schema, named)


def _number(schema: Mapping[str, Any], named: Named, whole: bool) -> Any:
    low, high = schema.get("minimum", float("-inf")), schema.get("maximum", float("inf"))
    while named.numbers:
        text = named.numbers.popleft()
        value = float(text) if "." in text else int(text)
        if low <= value <= high and (not whole or isinstance(value, int)):
            return value
    exclusive = schema.get("exclusiveMinimum", float("-inf"))
    return next(value for value in (0, 1, low, high, exclusive + 1) if low <= value <= high and value > exclusive)


def _text(schema: Mapping[str, Any], named: Named) -> str:
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]]
    low, high, pattern = schema.get("minLength", 0), schema.get("maxLength", 1_000), schema.get("pattern", "")
    while named.words:
        word = named.words.popleft()
        if low <= len(word) <= high and re.search(pattern, word):
            return word
    return "a" * low


def _resolved(reference: str, root: Any) -> Any:
    found = root
    for part in reference.removeprefix("#").split("/")[1:]:
        found = found[part.replace("~1", "/").replace("~0", "~")]
    return found
