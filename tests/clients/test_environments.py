"""Environments are built once, whole or not at all, and say why when they cannot be; docs/clients.md says the truth."""

import json
import re
from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.environments import CLIENTS, EnvironmentFailed, names, python_environment
from tests.clients.test_clients import CHECKS

DOCS = (CLIENTS.parents[1] / "docs" / "clients.md").read_text(encoding="utf-8")
EXACT = re.compile(r"[\w.\[\]-]+==[\w.]+")


def test_what_cannot_be_installed_says_so_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "PLACE", tmp_path / "clients")
    monkeypatch.setattr(environments, "CLIENTS", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "nobody").mkdir()
    (tmp_path / "nobody" / "requirements.txt").write_text("hexserve-no-such-package==1.0\n")
    with pytest.raises(EnvironmentFailed, match="'nobody' cannot be installed; without a network"):
        python_environment("nobody")
    assert list((tmp_path / "clients").iterdir()) == []


def test_a_second_run_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "PLACE", tmp_path / "clients")
    monkeypatch.setattr(environments, "CLIENTS", tmp_path)
    (tmp_path / "nothing").mkdir()
    needs = tmp_path / "nothing" / "requirements.txt"
    needs.write_text("# nothing\n")
    python = python_environment("nothing")
    assert python.exists()
    monkeypatch.setattr(environments, "_install", None)
    assert python_environment("nothing") == python
    needs.write_text("# something else\n")
    with pytest.raises(TypeError):
        python_environment("nothing")


@pytest.mark.parametrize("name", names())
def test_every_version_is_exact(name: str) -> None:
    folder = CLIENTS / name
    if (folder / "requirements.txt").exists():
        lines = (folder / "requirements.txt").read_text().split("\n")
        assert all(EXACT.fullmatch(line.split("#")[0].strip()) for line in lines if line.split("#")[0].strip())
    else:
        package = json.loads((folder / "package.json").read_text())
        assert all(re.fullmatch(r"\d[\w.-]*", version) for version in package["dependencies"].values())
        assert not (folder / "package-lock.json").exists()


def test_the_document_names_what_is_there() -> None:
    known = set(CHECKS)
    heads: list[str] = []
    for line in DOCS.split("## Test ids")[1].split("## How")[0].splitlines():
        cells = [re.findall(r"`([\w]+)`", cell) for cell in line.strip("|").split("|")[1:]]
        if line.startswith("| subject"):
            heads = [cell[0] for cell in cells]
        elif heads:
            named = {(head, check) for head, cell in zip(heads, cells, strict=False) for check in cell}
            assert named <= known, named - known
    for folder, version in re.findall(r"\| `(\w+)` \| `([^`]+)` \|", DOCS.split("## What to set")[0]):
        name, _, number = version.replace("==", " ").partition(" ")
        file = next(path for path in (CLIENTS / folder).iterdir() if path.name in ("requirements.txt", "package.json"))
        text = file.read_text()
        assert f"{name}=={number}" in text or f'"{name}": "{number}"' in text, version
