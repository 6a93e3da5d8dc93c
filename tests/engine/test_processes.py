"""How processes end, in words."""

from engine.processes import exit_text


def test_ends_are_told_in_words() -> None:
    assert exit_text(0) == "exited with status 0"
    assert exit_text(-11) == "was killed by SIGSEGV"
    assert exit_text(0xC0000005) == "crashed with status 0xC0000005"
    assert exit_text(None) == "ended with an unknown status"
