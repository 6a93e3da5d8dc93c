"""The version of an installation, and of a checkout."""

import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import NoReturn

import pytest

from server.commands.version import PROJECT_FILE, version_text


@pytest.fixture
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("server.commands.version.version", nowhere)


@pytest.mark.usefixtures("not_installed")
def test_a_checkout_says_what_its_project_file_says() -> None:
    assert version_text() == tomllib.loads(PROJECT_FILE.read_text(encoding="utf-8"))["project"]["version"]


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize("content", [None, "", "[project", '[project]\nname = "other"\nversion = "9"'])
def test_a_project_file_that_is_not_ours_says_nothing(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "pyproject.toml"
    if content is not None:
        file.write_text(content)
    assert version_text(file) == "unknown"
