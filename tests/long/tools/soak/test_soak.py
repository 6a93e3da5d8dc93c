"""The soak test of its command, longer."""

from pathlib import Path

from tests.tools.soak.test_soak import check


def test_nothing_is_lost_and_nothing_grows(tmp_path: Path) -> None:
    check("2000", "200", tmp_path)
