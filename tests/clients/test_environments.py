"""Environments are built once, whole or not at all, and say why when they cannot be; the page names what is there."""

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.clients import environments
from tests.clients.environments import CLIENTS, EnvironmentFailed, names, python_environment, too_new

DOCS = (CLIENTS.parents[1] / "docs" / "how-to" / "clients.md").read_text(encoding="utf-8")
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
    monkeypatch.setattr(environments, "install", None)
    assert python_environment("nothing") == python
    needs.write_text("# something else\n")
    with pytest.raises(TypeError):
        python_environment("nothing")


def test_packages_that_want_an_older_python_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "CLIENTS", tmp_path)
    minor = sys.version_info.minor
    for name, text in (("old", f"# Python below 3.{minor}\n"), ("new", f"# Python below 3.{minor + 1}\n"), ("any", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requirements.txt").write_text(text)
    assert "'old'" in too_new("old") and not too_new("new") and not too_new("any") and not too_new("nobody")
    built: list[str] = []
    monkeypatch.setattr(environments, "python_environment", built.append)
    assert environments.main() == 0
    assert sorted(built) == ["any", "new"]


def test_what_only_a_full_run_uses_is_built_for_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "CLIENTS", tmp_path)
    for name in ("any", *environments.FULL_ALONE):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requirements.txt").write_text("")
    for full, expected in (("", ["any"]), ("1", ["any", *environments.FULL_ALONE])):
        monkeypatch.setenv("FULL", full)
        built: list[str] = []
        monkeypatch.setattr(environments, "python_environment", built.append)
        assert environments.main() == 0
        assert sorted(built) == sorted(expected)


def test_what_stands_behind_the_mark_is_installed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is not there is asked for by one that is installed without what it requires."""
    wheel = tmp_path / "lonely-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        head = "Metadata-Version: 2.1\nName: lonely\nVersion: 1.0\nRequires-Dist: hexserve-no-such-package\n"
        file.writestr("lonely.py", "")
        file.writestr("lonely-1.0.dist-info/METADATA", head)
        file.writestr("lonely-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("lonely-1.0.dist-info/RECORD", "lonely.py,,\n")
    monkeypatch.setattr(environments, "PLACE", tmp_path / "clients")
    monkeypatch.setattr(environments, "CLIENTS", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "one").mkdir()
    needs = tmp_path / "one" / "requirements.txt"
    needs.write_text(f"lonely @ {wheel.as_uri()}\n")
    with pytest.raises(EnvironmentFailed, match="hexserve-no-such-package"):
        python_environment("one")
    needs.write_text(f"# nothing\n{environments.ALONE}lonely @ {wheel.as_uri()}\n")
    done = subprocess.run([python_environment("one"), "-c", "import lonely"], check=False)
    assert done.returncode == 0


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


def test_the_page_names_every_client_with_its_version() -> None:
    rows = dict(re.findall(r"\| `(\w+)` \| `([^`]+)` \|", DOCS.split("## What to set")[0]))
    assert set(rows) == set(names()) - {"faster_whisper", "page", "ray_serve", "whisper_cpp"}
    for folder, version in rows.items():
        name, _, number = version.replace("==", " ").partition(" ")
        file = next(path for path in (CLIENTS / folder).iterdir() if path.name in ("requirements.txt", "package.json"))
        text = file.read_text()
        assert f"{name}=={number}" in text or f'"{name}": "{number}"' in text, version
