"""Pages of a mapped table that was read do not stay this process's, and what is read afterwards is the same."""

import mmap
import sys
from pathlib import Path

import pytest

from engine.runtime.sessions import LEAST_MAPPED as LEAST
from engine.runtime.sessions import LookedUpPages

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pages are given back on Linux alone")


def mapped(path: Path) -> mmap.mmap:
    """As onnxruntime maps weights: private, and never written."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def resident(path: Path) -> int:
    """KiB of the mappings of a file that are this process's now (proc(5), Rss in /proc/pid/smaps)."""
    found, is_it = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, value, *_ = line.split()
        if not name.endswith(":"):
            is_it = line.endswith(str(path))
        elif is_it and name == "Rss:":
            found += int(value)
    return found


def test_what_was_read_is_given_back_and_reads_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a table.data"
    content = bytes(range(256)) * (LEAST // 256)
    path.write_bytes(content)
    with mapped(path) as table:
        pages = LookedUpPages(path)
        for _ in range(2):
            assert table[:] == content
            assert resident(path) * 1024 == len(content)
            pages.give_back()
            assert resident(path) == 0


def test_small_mappings_and_other_files_are_left_alone(tmp_path: Path) -> None:
    paths = tmp_path / "norms.data", tmp_path / "other.data"
    for path, size in zip(paths, (LEAST // 2, 2 * LEAST), strict=True):
        path.write_bytes(b"1" * size)
    with mapped(paths[0]) as norms, mapped(paths[1]) as matrices:
        pages = LookedUpPages(paths[0])
        assert norms[:] + matrices[:] == b"1" * (LEAST // 2 + 2 * LEAST)
        pages.give_back()
        assert [resident(path) * 1024 for path in paths] == [LEAST // 2, 2 * LEAST]
