"""The files of a bundle are compared with its hashes once, and again when one of them changes."""

import logging
import os
from pathlib import Path

import pytest

from engine.bundle import weight_files as hashes
from engine.bundle.weight_files import check_once, remember
from engine.errors import BundleError
from tests.engine.tiny_bundle import write_bundle


def refuse(*_: object) -> list[str]:
    pytest.fail("read again")


def test_read_once_until_a_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, memory = tmp_path / "bundle", tmp_path / "costs"
    manifest = write_bundle(folder)
    with caplog.at_level(logging.INFO, "hexserve.bundle"):
        check_once(folder, manifest, memory)
    assert [record.message for record in caplog.records] == ["checking the hashes of 2 files, 0.00 GB, once"]
    with monkeypatch.context() as patch:
        patch.setattr(hashes, "verify_hashes", refuse)
        check_once(folder, manifest, memory)
    file = folder / "chat_template.jinja"
    file.write_bytes(b"x" * file.stat().st_size)
    os.utime(file, ns=(1, 1))
    with pytest.raises(BundleError, match=r"chat_template\.jinja is damaged: its sha256 is not the manifest's"):
        check_once(folder, manifest, memory)


def test_what_was_just_written_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = write_bundle(tmp_path / "bundle")
    remember(tmp_path / "bundle", manifest, tmp_path / "costs")
    monkeypatch.setattr(hashes, "verify_hashes", refuse)
    check_once(tmp_path / "bundle", manifest, tmp_path / "costs")


def test_without_a_memory_it_is_read_each_time(tmp_path: Path) -> None:
    manifest = write_bundle(tmp_path / "bundle")
    check_once(tmp_path / "bundle", manifest, None)
    (tmp_path / "file").write_text("in the way")
    check_once(tmp_path / "bundle", manifest, tmp_path / "file" / "costs")
    (tmp_path / "bundle" / "chat_template.jinja").unlink()
    with pytest.raises(BundleError, match="cannot be read: No such file"):
        check_once(tmp_path / "bundle", manifest, tmp_path / "costs")
