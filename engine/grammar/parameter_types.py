"""Which JSON types a schema allows, for arguments that are not written as JSON."""

from collections.abc import Mapping
from typing import Any

DEEPEST = 16
Types = frozenset[str]


def resolved(schema: Any, root: Any) -> Any:
    """The schema that a chain of local references leads to; `schema` itself where it leads nowhere."""
    for _ in range(DEEPEST):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        place = root
        for part in reference[2:].split("/"):
            place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
        if place is None:
            return schema
        schema = place
    return schema


def types_of(schema: Any, root: Any, depth: int = 0) -> Types | None:
    """The types that a value may have, None when any may be."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > DEEPEST:
        return None
    named = schema.get("type")
    if isinstance(named, str | list):
        return frozenset(each for each in ([named] if isinstance(named, str) else named) if isinstance(each, str))
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return frozenset(map(type_of, values))
    return _combined(schema, root, depth)


def _combined(schema: Mapping[str, Any], root: Any, depth: int) -> Types | None:
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list):
            allowed = [types_of(option, root, depth + 1) for option in options]
            known = [each for each in allowed if each is not None]
            return frozenset().union(*known) if len(known) == len(allowed) else None
    if isinstance(parts := schema.get("allOf"), list):
        return next((found for part in parts if (found := types_of(part, root, depth + 1)) is not None), None)
    return None


def type_of(value: Any) -> str:
    """JSON Schema's name for the type of a value."""
    if isinstance(value, bool):
        return "boolean"
    names = ((str, "string"), (int, "integer"), (float, "number"), (Mapping, "object"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "null")


def allows(types: Types | None, value: Any) -> bool:
    """Whether a value has one of the types."""
    own = type_of(value)
    is_whole = isinstance(value, float) and value.is_integer() and types is not None and "integer" in types
    return types is None or own in types or is_whole or (own == "integer" and "number" in types)
