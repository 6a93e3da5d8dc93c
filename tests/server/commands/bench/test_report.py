"""Bars made of characters."""

from server.commands.bench.session import bar


def test_bars() -> None:
    assert bar(10, 10, 4) == "████"
    assert bar(5.5, 10, 4) == "██▎"
    assert bar(0, 0, 4) == ""
    assert bar(5.5, 10, 4, is_plain=True) == "##"
