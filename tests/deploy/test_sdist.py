"""What a source distribution holds: what the wheel is made of, and no test without what it imports."""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths in the archive, below its one folder."""
    project = tmp_path_factory.mktemp("sdist") / "project"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for file in filter(lambda name: (ROOT / name).is_file(), listed.splitlines()):
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, project / file)
    command = [sys.executable, "-W", "ignore", "-c", BUILD, str(project.parent)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with tarfile.open(project.parent / done.stdout.splitlines()[-1]) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def test_it_has_no_tests(names: set[str]) -> None:
    assert [name for name in names if name.startswith("tests/")] == []


def test_it_has_both_packages_and_the_embedded_model(names: set[str]) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "server", "engine"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    sources = {file for file in listed.stdout.splitlines() if file.endswith(".py") and (ROOT / file).is_file()}
    assert sources <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert any(name.startswith("engine/demo/model/") for name in names)
