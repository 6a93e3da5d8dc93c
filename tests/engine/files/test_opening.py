"""Only regular files are opened, and never more of them than their kind needs."""

import os
import socket
import sys
from pathlib import Path

import pytest

from engine.files import FileRefused, is_regular, open_regular, read_bytes, read_text

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")


@POSIX
def test_pipes_devices_sockets_and_folders_are_refused_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        listener.bind("socket")
    for path, kind in (
        (tmp_path / "pipe", "a named pipe"),
        (tmp_path / "link", "a named pipe"),
        (tmp_path / "socket", "a socket"),
        (tmp_path, "a folder"),
        (Path("/dev/zero"), "a device"),
    ):
        with pytest.raises(FileRefused) as refused:
            open_regular(path)
        assert str(refused.value) == f"it is {kind}, not a regular file"
        assert not is_regular(path)


@POSIX
def test_a_pipe_that_takes_a_files_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"x")
    found = (tmp_path / "file").stat()
    (tmp_path / "file").unlink()
    os.mkfifo(tmp_path / "file")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda *_, **__: found)
        with pytest.raises(FileRefused, match="a named pipe"):
            open_regular(tmp_path / "file")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, 5) == b"12345"
    os.truncate(path, 1 << 40)
    with pytest.raises(FileRefused, match=r"^it is larger than 5 bytes$"):
        read_bytes(path, 5)


def test_text_is_utf_8_and_has_one_kind_of_line_end(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\r\nb\rc\n")
    assert read_text(tmp_path / "file", 100) == "a\nb\nc\n"
    (tmp_path / "file").write_bytes(b"abc\xff")
    with pytest.raises(FileRefused, match=r"^it is not UTF-8 \(byte 3\)$"):
        read_text(tmp_path / "file", 100)
