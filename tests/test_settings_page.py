"""The reference of settings is made from the settings themselves."""

from pathlib import Path

from tests.settings_page import PAGE, renewed

ROOT = Path(__file__).parents[1]


def test_the_page_is_current() -> None:
    """Where it is not: `python -m tests.settings_page`."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert renewed(page) == page
