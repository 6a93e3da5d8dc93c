"""Lists of whole numbers."""

import pytest

from server.commands.exit_codes import whole_numbers


def test_commas_and_spaces() -> None:
    assert whole_numbers("1, 4,16", "--clients") == (1, 4, 16)


@pytest.mark.parametrize(("text", "message"), [("", "whole numbers"), ("1,x", "whole numbers"), ("4,0", "at least 1")])
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"--rows must be {message}"):
        whole_numbers(text, "--rows")
