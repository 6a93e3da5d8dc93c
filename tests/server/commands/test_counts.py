"""Lists of whole numbers."""

import pytest

from server.commands.counts import counts


def test_commas_and_spaces() -> None:
    assert counts("1, 4,16", "--clients") == (1, 4, 16)


@pytest.mark.parametrize(("text", "message"), [("", "whole numbers"), ("1,x", "whole numbers"), ("4,0", "at least 1")])
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"--rows must be {message}"):
        counts(text, "--rows")
