"""Descriptions of binaries come from a process that may die; whatever happens to it is a sentence."""

import sys
from pathlib import Path

import msgspec
import pytest

from engine.errors import BundleError
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, QnnEncoding
from engine.runtime.qnn.reader import check_age, describe_binary

TENSOR = BinaryTensor("x", "uint8", (1, 2), 0, QnnEncoding((0.5,), (-128,)))
INFO = BinaryInfo("v2.45.0.2512", (BinaryGraph("g", (TENSOR,), ()),))


def script(tmp_path: Path, body: str) -> tuple[str, ...]:
    path = tmp_path / "describe.py"
    path.write_text(f"import os, sys, signal, time, pathlib\n{body}\n")
    return (sys.executable, str(path))


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "part1.bin"
    path.write_bytes(b"content")
    return path


def answering(tmp_path: Path) -> tuple[str, ...]:
    count = tmp_path / "count"
    answer = msgspec.json.encode(INFO).decode()
    return script(tmp_path, f"open({str(count)!r}, 'a').write('x')\nprint('banner')\nprint({answer!r})")


def test_it_is_described_once_until_it_changes(tmp_path: Path, binary: Path) -> None:
    command, cache = answering(tmp_path), tmp_path / "cache"
    assert describe_binary(binary, cache, command) == INFO
    assert describe_binary(binary, cache, command) == INFO
    assert (tmp_path / "count").read_text() == "x"
    binary.write_bytes(b"other content")
    assert describe_binary(binary, cache, command) == INFO
    assert (tmp_path / "count").read_text() == "xx"


def test_a_damaged_cache_is_made_again(tmp_path: Path, binary: Path) -> None:
    command, cache = answering(tmp_path), tmp_path / "cache"
    describe_binary(binary, cache, command)
    (entry,) = (cache / "binaries").iterdir()
    entry.write_bytes(b"{")
    assert describe_binary(binary, cache, command) == INFO


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, binary: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert describe_binary(binary, tmp_path / "cache", answering(tmp_path)) == INFO


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("print('the reason', file=sys.stderr); sys.exit(3)", "part1.bin cannot be read: the reason"),
        ("sys.exit(7)", "part1.bin is damaged: the library that reads it exited with status 7"),
        ("print('no json')", "the description of part1.bin cannot be read"),
        ("pass", "the description of part1.bin cannot be read"),
    ],
)
def test_failures_are_sentences(tmp_path: Path, binary: Path, body: str, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        describe_binary(binary, tmp_path / "cache", script(tmp_path, body))


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX")
def test_a_crash_names_the_signal(tmp_path: Path, binary: Path) -> None:
    with pytest.raises(BundleError, match="was killed by SIGSEGV"):
        describe_binary(binary, tmp_path / "cache", script(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)"))


def test_a_hang_ends(tmp_path: Path, binary: Path) -> None:
    with pytest.raises(BundleError, match=r"could not be described within 0\.2 s"):
        describe_binary(binary, tmp_path / "cache", script(tmp_path, "time.sleep(60)"), timeout_s=0.2)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        describe_binary(tmp_path / "none.bin", tmp_path)
    (tmp_path / "empty.bin").touch()
    with pytest.raises(BundleError, match="is empty"):
        describe_binary(tmp_path / "empty.bin", tmp_path)


def test_a_newer_binary_is_refused_before_it_is_loaded() -> None:
    check_age("a.bin", INFO, "2.51.0")
    check_age("a.bin", INFO, "2.45.1")
    check_age("a.bin", INFO, "")
    with pytest.raises(BundleError, match=r"a\.bin was made by QNN 2\.45 .* runtime is QNN 2\.44\.0: update"):
        check_age("a.bin", INFO, "2.44.0")
