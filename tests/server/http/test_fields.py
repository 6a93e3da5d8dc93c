"""One definition of an answer: what is written is what its schema says."""

from typing import Any

import msgspec
import pytest
from msgspec import UNSET, UnsetType
from pydantic import TypeAdapter, ValidationError

from server.http.fields import Answer


class Part(Answer, kw_only=True):
    """A part."""

    kind: str = "part"
    text: str | None
    note: str | UnsetType = UNSET


class Whole(Answer):
    """A whole."""

    parts: list[Part]
    total: int | UnsetType | None = UNSET


SCHEMA = TypeAdapter(Whole)


@pytest.mark.parametrize(
    ("answer", "written"),
    [
        (Whole([]), b'{"parts":[]}'),
        (Whole([], None), b'{"parts":[],"total":null}'),
        (Whole([Part(text=None)], 1), b'{"parts":[{"kind":"part","text":null}],"total":1}'),
        (Whole([Part(text="a", note="b")]), b'{"parts":[{"kind":"part","text":"a","note":"b"}]}'),
    ],
)
def test_what_is_written_has_the_schema(answer: Whole, written: bytes) -> None:
    assert msgspec.json.encode(answer) == written
    SCHEMA.validate_python(msgspec.json.decode(written), strict=True)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"parts": [], "other": 1},
        {"parts": [{"text": "a"}]},
        {"parts": [{"kind": "part", "text": "a", "note": None}]},
        {"parts": [], "total": "1"},
    ],
    ids=["a field is missing", "one too many", "a constant is missing", "null for absent", "another type"],
)
def test_the_schema_refuses_what_is_never_written(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        SCHEMA.validate_python(given, strict=True)


def test_the_schema_has_the_words_of_the_class() -> None:
    schema = SCHEMA.json_schema(mode="serialization")
    assert (schema["description"], schema["required"]) == ("A whole.", ["parts"])
    assert schema["$defs"]["Part"]["required"] == ["kind", "text"]
