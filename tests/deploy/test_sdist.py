"""What a source distribution holds: what the wheel is made of, and no test without what it imports."""

import tarfile

import pytest

from tests.deploy.built import build, tracked


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Paths in the archive, below its one folder."""
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}


def test_it_has_no_tests(names: set[str]) -> None:
    assert [name for name in names if name.startswith("tests/")] == []


def test_it_has_both_packages_and_the_embedded_model(names: set[str]) -> None:
    sources = {file for file in tracked("server", "engine") if file.endswith(".py")}
    assert sources <= names
    assert {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert any(name.startswith("engine/demo/model/") for name in names)
