"""Refusals in the words of another format."""

import pytest

from engine.errors import ContextLengthExceeded, InvalidRequest
from server.generation.launch import field_aliases
from server.http.errors import Refusal, refuse


def upper(name: str) -> str:
    return name.upper()


def test_a_refusal_is_renamed_in_its_sentence_too() -> None:
    with pytest.raises(Refusal) as found, field_aliases(upper):
        raise refuse("'stop' is wrong; so is 'other'.", "stop", "invalid_value", 422)
    error = found.value.error
    assert (error.message, error.param, error.code, error.status) == (
        "'STOP' is wrong; so is 'other'.",
        "STOP",
        "invalid_value",
        422,
    )


def test_what_the_engine_refuses_too() -> None:
    with pytest.raises(InvalidRequest, match=r"'X\.Y' is wrong") as found, field_aliases(upper):
        raise InvalidRequest("'x.y' is wrong", "x.y")
    assert found.value.param == "X.Y"
    with pytest.raises(ContextLengthExceeded, match="20 in the MESSAGES, 1") as long, field_aliases(upper):
        raise ContextLengthExceeded(10, 20, 1)
    assert (long.value.param, long.value.limit) == ("MESSAGES", 10)


def test_what_names_no_field_stays_as_it_is() -> None:
    with pytest.raises(Refusal, match="nothing fits"), field_aliases(upper):
        raise refuse("nothing fits")
