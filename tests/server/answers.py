"""What a client got, against the schema that the OpenAPI document gives for it."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from server.http.fields import Answer


def check_answer(kind: type[Answer], given: Any) -> None:
    """Fail unless JSON has the keys and the types of this answer, and no other."""
    _adapter(kind).validate_python(given, strict=True)


@cache
def _adapter(kind: type[Answer]) -> TypeAdapter[Answer]:
    return TypeAdapter(kind)
