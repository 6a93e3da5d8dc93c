"""Peak memory of a process and all its descendants, sampled while something else is measured."""

import contextlib
import threading
from dataclasses import dataclass

import psutil

SAMPLE_S = 1.0


@dataclass(slots=True)
class PeakMemory:
    """Bytes. rss counts pages that processes share once for each of them; pss splits them (Linux only, else 0)."""

    rss: int = 0
    pss: int = 0


class MemoryWatch:
    """A context manager; `peaks` holds the peak of each process id."""

    def __init__(self, pids: tuple[int, ...]) -> None:
        self.peaks = {pid: PeakMemory() for pid in pids}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            for pid, peak in self.peaks.items():
                rss, pss = tree_memory(pid)
                peak.rss, peak.pss = max(peak.rss, rss), max(peak.pss, pss)
            if self._ended.wait(SAMPLE_S):
                return


def tree_memory(pid: int) -> tuple[int, int]:
    """rss and pss of now."""
    rss = pss = 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                rss += process.memory_info().rss
                pss += getattr(process.memory_full_info(), "pss", 0)
    return rss, pss
