"""What the samples of a soak say: whether something grew. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

MEMORY_SHARE, MEMORY_BYTES = 0.10, 32 * 1024**2  # growth that caches and the allocator explain
MOST_FILES, MOST_THREADS = 8, 8  # more at the end than at any time of the second quarter
MOST_PROCESSES = 10  # server, worker, and two pools of four helpers that grow when the machine is busy
HELPER_BYTES, HELPER_FILES, HELPER_THREADS = 64 * 1024**2, 12, 5  # what one more helper may hold, its pipes included
LEAST_SAMPLES = 40  # below this the trend of memory says nothing


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """At second `at`: bytes, open files, threads and processes of the server and all its children; columns in use."""

    at: float
    memory: int
    files: int
    threads: int
    processes: int
    columns: int


def verdict(samples: Sequence[ProcessSample]) -> list[str]:
    """What grew, each in a sentence with its figures; the last sample was taken when nothing ran any more.

    Thread pools fill in the beginning, so the second quarter is what the end is compared with. Helpers that started
    since then explain their own share, and their number has a bound. A run of fewer than LEAST_SAMPLES is judged by its
    columns and processes only.
    """
    last = samples[-1]
    found = [f"{last.columns} columns are in use though nothing runs"] if last.columns else []
    processes = max(sample.processes for sample in samples)
    if processes > MOST_PROCESSES:
        found.append(f"there were {processes} processes, at most {MOST_PROCESSES} are expected")
    if len(samples) < LEAST_SAMPLES:
        return found
    quarter = len(samples) // 4
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    before, after = (median(sample.memory for sample in part) for part in (early, late))
    started = max(0, last.processes - max(sample.processes for sample in early))
    if after > before * (1 + MEMORY_SHARE) + MEMORY_BYTES + started * HELPER_BYTES:
        found.append(f"memory grew from {before / 1e6:.0f} MB (second quarter) to {after / 1e6:.0f} MB (last quarter)")
    files, threads = max(sample.files for sample in early), max(sample.threads for sample in early)
    if last.files > files + MOST_FILES + started * HELPER_FILES:
        found.append(f"open files grew from {files} to {last.files}")
    if last.threads > threads + MOST_THREADS + started * HELPER_THREADS:
        found.append(f"threads grew from {threads} to {last.threads}")
    return found
