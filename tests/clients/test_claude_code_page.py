"""docs/how-to/clients/claude-code.md shows the settings that Claude Code is judged with."""

import re
from pathlib import Path

CLIENTS = Path(__file__).parent
PAGE = (CLIENTS.parents[1] / "docs" / "how-to" / "clients" / "claude-code.md").read_text(encoding="utf-8")
CHECKS = (CLIENTS / "claude_code" / "checks.mjs").read_text(encoding="utf-8")
PACKAGE = (CLIENTS / "claude_code" / "package.json").read_text(encoding="utf-8")


def test_the_settings_of_the_page_are_those_of_the_checks() -> None:
    shown = dict(re.findall(r"^export (\w+)=(\S+)$", PAGE, re.MULTILINE))
    judged = dict(
        re.findall(r"^  ([A-Z_]+): (.+),$", CHECKS.partition("const settings = {")[2].partition("};")[0], re.M)
    )
    assert list(shown) == list(judged)
    fixed = {name: value.strip("'") for name, value in judged.items() if value.startswith("'")}
    assert len(fixed) == 3 and fixed.items() <= shown.items()


def test_the_version_of_the_page_is_the_one_that_is_judged() -> None:
    [version] = re.findall(r'"@anthropic-ai/claude-code": "([\d.]+)"', PACKAGE)
    assert f"version {version} " in PAGE
