"""The soak test of its command, longer."""

from tests.tools.soak.test_soak import check


def test_nothing_is_lost_and_nothing_grows() -> None:
    check("2000", "200")
