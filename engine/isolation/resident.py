"""What a process holds after its start and does not need again, given back to the system. Linux; elsewhere nothing."""

import ctypes
import re
import sys
from collections.abc import Iterator
from pathlib import Path

MAPS = Path("/proc/self/smaps")
DONT_NEED = 4  # of madvise
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)")


def give_back_freed() -> None:
    """Return what was freed, which glibc keeps. It may break huge pages up, so not where graphs run."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def give_back_read(folder: Path) -> None:
    """Return pages of the folder's mapped files that were read and not written.

    onnxruntime copies most weights when it opens a graph. What it reads again comes from the file's cache.
    """
    if sys.platform == "linux":
        advise = ctypes.CDLL(None).madvise
        for start, size in _unwritten(f"{folder.resolve()}/"):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(size), DONT_NEED)


def _unwritten(prefix: str) -> Iterator[tuple[int, int]]:
    """Address and size of each mapping of such files with no page of its own."""
    start = size = 0
    for line in MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        if found := _MAPPING.fullmatch(line):
            start = int(found[1], 16)
            size = int(found[2], 16) - start if found[3].startswith(prefix) else 0
        elif size and line.startswith("Anonymous:") and int(line.split()[1]) == 0:
            yield start, size
