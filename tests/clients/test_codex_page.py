"""The settings that docs/how-to/clients/codex.md shows are those that Codex is judged with."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "clients" / "codex.md").read_text(encoding="utf-8")
CHECKS = (ROOT / "tests" / "clients" / "codex" / "checks.mjs").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "language"), [("CONFIG", "toml"), ("CATALOG", "json")])
def test_the_page_shows_what_was_tried(name: str, language: str) -> None:
    tried = re.search(rf"const {name} = `(.*?)`;", CHECKS, re.DOTALL)
    shown = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert tried and shown and tried[1] == shown[1]


def test_the_page_and_the_table_name_the_version_that_was_tried() -> None:
    package = (ROOT / "tests" / "clients" / "codex" / "package.json").read_text(encoding="utf-8")
    version = re.search(r'"@openai/codex": "([\d.]+)"', package)
    assert version and version[1] in PAGE
    assert f"`@openai/codex {version[1]}`" in (ROOT / "docs" / "how-to" / "clients.md").read_text(encoding="utf-8")
