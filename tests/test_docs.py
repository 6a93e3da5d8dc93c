"""The README and every page under docs/: links, files and command lines that they name exist."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from server.commands.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "deploy" / "README.md", *(ROOT / "docs").rglob("*.md")]


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them: lower case, no punctuation, hyphens for spaces."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"(?m)^#+ (.+)$", text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_every_page_can_be_reached_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / target.split("#")[0]).resolve() for target in re.findall(r"\]\(([^)\s]+)\)", index)}
    pages = {page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "clients"}
    assert {page.resolve() for page in pages} - linked == {(ROOT / "docs" / "README.md").resolve()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_files_exist(page: Path) -> None:
    named = re.findall(r"`((?:server|engine|tools|tests|deploy)/[\w./-]+)(?:::\w+)?`", page.read_text(encoding="utf-8"))
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_options_of_hexserve_exist() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    lines = [line for page in PAGES for line in re.findall(r"hexserve ([a-z-]+) ([^`\n]*)", page.read_text("utf-8"))]
    found = [
        (name, option) for name, rest in lines if name in commands for option in re.findall(r"--(?!help)[a-z-]+", rest)
    ]
    known = {
        name: {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts}
        for name, command in commands.items()
    }
    known["service"] = known["serve"]
    assert len(found) > 20
    assert [(name, option) for name, option in found if option not in known[name]] == []


def test_programs_exist() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"python -m ((?:tools|tests)[\w.]*\w)", page.read_text("utf-8"))
    }
    assert len(named) > 10
    assert [name for name in sorted(named) if find_spec(name) is None] == []
