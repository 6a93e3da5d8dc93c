"""The table of Whispers of given sizes, by its command."""

import pytest

from tools.speech import sizes


def test_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Written, compiled and run in processes of their own: a number above 0 in every cell."""
    monkeypatch.setattr("sys.argv", ["sizes", "--sizes", "tiny", "--threads", "1"])
    assert sizes.main() == 0
    head, _, line = capsys.readouterr().out.splitlines()
    name, *cells = line.strip("| ").split(" | ")
    assert (name, cells[0]) == ("tiny", "38") and len(cells) + 1 == len(head.strip("| ").split(" | "))
    assert min(map(float, cells)) > 0
