"""Pages of a mapped table. A step reads a few rows of the embedding; what it read is the system's to keep, not ours."""

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path

LEAST = 1 << 20  # bytes; norms and biases lie in mappings of their own and are read in every step


class LookedUpPages:
    """The mappings of a file that onnxruntime reads tables from. Nobody writes them. On Linux alone; else nothing."""

    def __init__(self, path: Path) -> None:
        self._spans = list(_mapped(path)) if sys.platform == "linux" else []
        self._advise = ctypes.CDLL(None).madvise if self._spans else None

    def give_back(self) -> None:
        """Let no page count as this process's: the next lookup maps those of its tokens again, a microsecond each."""
        if self._advise is None:
            return
        for address, size in self._spans:
            self._advise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)


def _mapped(path: Path) -> Iterator[tuple[int, int]]:
    """Address and bytes of each mapping of a file (proc(5), /proc/pid/maps)."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, _, _, _, _, *name = line.split(maxsplit=5)
        if name != [str(path)]:
            continue
        start, end = (int(edge, 16) for edge in span.split("-"))
        if end - start >= LEAST:
            yield start, end - start
