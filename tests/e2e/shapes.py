"""A corpus of shapes of JSON schemas: `draw(random)` gives one, small enough to be satisfied in few tokens."""

from collections.abc import Callable
from random import Random
from typing import Any

Schema = dict[str, Any]
WORDS = ("name", "age", "city", "id", "tags", "kind", "price", "größe", "a b", "x-y", 'quo"te')


def closed(properties: Schema, required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
    }


def integer(random: Random) -> Schema:
    low = random.randint(-1000, 1000)
    return random.choice(
        (
            {"type": "integer", "minimum": low, "maximum": low + random.randint(0, 5000)},
            {"type": "integer", "minimum": 0, "exclusiveMaximum": random.randint(1, 99)},
            {"type": "integer", "multipleOf": random.choice((2, 5, 10)), "minimum": 0, "maximum": 500},
        )
    )


def number(random: Random) -> Schema:
    return random.choice(
        ({"type": "number", "minimum": 0, "maximum": 1}, {"type": "number", "exclusiveMinimum": -5, "maximum": 5.5})
    )


def string(random: Random) -> Schema:
    return random.choice(
        (
            {"type": "string", "maxLength": random.randint(0, 12)},
            {"type": "string", "minLength": 2, "maxLength": 6},
            {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
            {"type": "string", "pattern": "^(a+)+$", "maxLength": 9},
            {"type": "string", "format": random.choice(("date", "uuid", "ipv4", "date-time", "time"))},
        )
    )


def constant(random: Random) -> Schema:
    value = random.choice((None, True, 7, -1.5, "né", {"a": [1, {}]}, []))
    return random.choice(({"const": value}, {"enum": ["red", "grün", 3, None, value]}))


def union(random: Random) -> Schema:
    return random.choice(
        (
            {"anyOf": [leaf(random), {"type": "null"}]},
            {"type": ["boolean", "null"]},
            {
                "oneOf": [
                    closed({"kind": {"const": "cat"}, "lives": {"type": "integer", "minimum": 0, "maximum": 9}}),
                    closed({"kind": {"const": "dog"}, "good": {"type": "boolean"}}),
                ]
            },
        )
    )


def array(random: Random) -> Schema:
    return random.choice(
        (
            {"type": "array", "items": leaf(random), "minItems": random.randint(0, 2), "maxItems": 3},
            {"type": "array", "prefixItems": [leaf(random), leaf(random)], "items": False, "minItems": 2},
        )
    )


def record(random: Random) -> Schema:
    names = random.sample(WORDS, random.randint(1, 3))
    return closed({name: leaf(random) for name in names}, names[: random.randint(0, len(names))])


def nested(random: Random) -> Schema:
    return closed({"inner": record(random), "list": {"type": "array", "items": record(random), "maxItems": 1}})


def referenced(random: Random) -> Schema:
    schema = closed({"first": {"$ref": "#/$defs/thing"}, "second": {"$ref": "#/$defs/thing"}})
    return schema | {"$defs": {"thing": record(random)}}


def recursive(_: Random) -> Schema:
    node = closed({"value": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}})
    return {"$defs": {"node": node}, "$ref": "#/$defs/node"}


def merged(random: Random) -> Schema:
    parts = [{"type": "object", "properties": {name: leaf(random)}, "required": [name]} for name in ("a", "b")]
    return {"allOf": parts, "type": "object", "properties": {"a": True, "b": True}, "additionalProperties": False}


def map_of(random: Random) -> Schema:
    return {"type": "object", "patternProperties": {"^k[0-9]$": leaf(random)}, "additionalProperties": False}


def leaf(random: Random) -> Schema:
    return random.choice((integer, number, string, constant, lambda _: {"type": "boolean"}))(random)


SHAPES: tuple[Callable[[Random], Schema], ...] = (
    integer, number, string, constant, union, array, record, nested, referenced, recursive, merged, map_of,
)  # fmt: skip


def draw(random: Random) -> Schema:
    return random.choice(SHAPES)(random)
