"""What is given back comes again from the file, and what was written stays."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.isolation.machine import MAPS, give_back_freed, give_back_read

PAGES = 64
PAGE_NUMBERS = 1024  # of int32


def resident_kb(file: Path) -> int:
    """How much of it lies in this process, as the kernel says."""
    found, is_it = 0, False
    for line in MAPS.read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_it = line.endswith(f" {file}")
        elif is_it and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is given back")
def test_pages_that_were_read_are_given_back_and_those_that_were_written_stay(tmp_path: Path) -> None:
    content = np.arange(PAGES * PAGE_NUMBERS, dtype=np.int32)
    for name in ("read", "written"):
        content.tofile(tmp_path / name)
    read, written = (np.memmap(tmp_path / name, np.int32, "c") for name in ("read", "written"))
    written[5] = -1
    assert read.sum() == written.sum() + 6
    assert resident_kb(tmp_path / "read") == 4 * PAGES
    give_back_read(tmp_path / "elsewhere")
    assert resident_kb(tmp_path / "read") == 4 * PAGES
    give_back_read(tmp_path)
    give_back_freed()
    assert resident_kb(tmp_path / "read") == 0
    assert resident_kb(tmp_path / "written") == 4 * PAGES
    assert written[5] == -1
    assert np.array_equal(read, content)
