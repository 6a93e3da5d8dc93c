"""Placing binaries in the cache: links where they work, copies where not, a sentence where neither does."""

import errno
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import engine
from engine.errors import BundleError
from engine.genie.convert import CONVERTERS, conversion_key, place_binaries


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "bundle" / "part1.bin"
    path.parent.mkdir()
    path.write_bytes(b"graphs")
    return path


def no_link(source: Path, target: Path) -> None:
    raise OSError(errno.EXDEV, "cross-device link")


def test_a_link_costs_no_space(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    place_binaries({"part1.bin": source}, folder)
    assert source.samefile(folder / "part1.bin")


def test_a_copy_where_links_fail(source: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    place_binaries({"part1.bin": source}, folder, no_link)
    assert (folder / "part1.bin").read_bytes() == b"graphs"
    assert not source.samefile(folder / "part1.bin")


def test_no_room_for_a_copy(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(BundleError, match=r"part1\.bin .* must be copied .*: choose a cache on the file system of"):
        place_binaries({"part1.bin": source}, tmp_path, no_link)


def test_what_a_conversion_is_named_by_is_there() -> None:
    package = Path(engine.__file__).parent
    assert [name for name in CONVERTERS if not list((package / name).glob("*.py"))] == []


def test_another_file_is_another_conversion(tmp_path: Path) -> None:
    before = conversion_key(tmp_path)
    (tmp_path / "part1.bin").write_bytes(b"graphs")
    assert before != conversion_key(tmp_path)
