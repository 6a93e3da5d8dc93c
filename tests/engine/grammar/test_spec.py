"""Where references inside a schema lead."""

from typing import Any

import pytest

from engine.grammar.spec import resolved, types_of

ROOT: dict[str, Any] = {
    "type": "object",
    "$defs": {
        "a/b": {"type": "string"},
        "c d": {"type": "number"},
        "~": {"$ref": "#/$defs/a~1b"},
        "x": {"$ref": "#/$defs/x"},
    },
    "anyOf": [{"type": "null"}, {"type": "array"}],
}


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        ("#", "object"),
        ("#/$defs/a~1b", "string"),
        ("#/$defs/~0", "string"),
        ("#/%24defs/c%20d", "number"),
        ("#/anyOf/1", "array"),
    ],
)
def test_a_reference_is_a_pointer_from_the_root(reference: str, found: str) -> None:
    assert types_of({"$ref": reference}, ROOT) == {found}


@pytest.mark.parametrize("reference", ["#/anyOf/2", "#/anyOf/-1", "#/$defs/no", "#/type/0", "#anchor", "o.json#", 7])
def test_one_that_leads_nowhere_says_nothing(reference: object) -> None:
    schema = {"$ref": reference}
    assert resolved(schema, ROOT) is schema and types_of(schema, ROOT) is None


def test_a_circle_ends() -> None:
    assert types_of({"$ref": "#/$defs/x"}, ROOT) is None
