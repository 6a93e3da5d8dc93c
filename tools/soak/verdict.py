"""What the samples of a soak say: whether something grew, and how it looks. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from types import MappingProxyType
from xml.etree.ElementTree import Element, SubElement

from tools.drawing import add_text, document, sheet

MEMORY_SHARE, MEMORY_BYTES = 0.10, 32 * 1024**2  # growth that caches and the allocator explain
MOST_FILES, MOST_THREADS = 8, 8  # more at the end than at any time of the second quarter
MOST_PROCESSES = 10  # server, worker, and two pools of four helpers that grow when the machine is busy
HELPER_BYTES, HELPER_FILES, HELPER_THREADS = 64 * 1024**2, 12, 5  # what one more helper may hold, its pipes included
LEAST_SAMPLES = 40  # below this the trend of memory says nothing
WIDTH, PANEL, MARGIN = 720, 130, 70


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


CURVES: Mapping[str, Callable[[ProcessSample], float]] = MappingProxyType(
    {
        "memory, MB": lambda sample: sample.memory / 1e6,
        "open files": lambda sample: sample.files,
        "threads": lambda sample: sample.threads,
        "columns in use": lambda sample: sample.columns,
    }
)


def drawing(samples: Sequence[ProcessSample], kills: Sequence[float], requests: int) -> str:
    """An SVG document: a curve for each thing that could leak, and a mark where the worker was killed."""
    root = sheet(WIDTH, PANEL * len(CURVES) + 60)
    seconds = max(samples[-1].at, 1.0)
    title = f"{requests} requests in {seconds / 60:.1f} minutes, {len(kills)} kills of the worker (red)"
    add_text(root, MARGIN, 22, title, size=14)
    for index, (name, value) in enumerate(CURVES.items()):
        _panel(
            root, 40 + index * PANEL, name, [(sample.at / seconds, value(sample)) for sample in samples], kills, seconds
        )
    return document(root)


def _panel(
    root: Element, top: int, name: str, points: Sequence[tuple[float, float]], kills: Sequence[float], seconds: float
) -> None:
    plot, high = WIDTH - MARGIN - 20, PANEL - 40
    most = max(value for _, value in points) or 1.0
    add_text(root, MARGIN, top + 12, name)
    add_text(root, MARGIN - 8, top + 28, f"{most:.0f}", size=11, anchor="end")
    add_text(root, MARGIN - 8, top + 20 + high, "0", size=11, anchor="end")
    for kill in kills:
        x = f"{MARGIN + plot * kill / seconds:.1f}"
        SubElement(root, "line", x1=x, x2=x, y1=str(top + 20), y2=str(top + 20 + high), stroke="#e3a1a1")
    drawn = " ".join(f"{MARGIN + plot * x:.1f},{top + 20 + high * (1 - value / most):.1f}" for x, value in points)
    SubElement(root, "polyline", {"points": drawn, "fill": "none", "stroke": "#2f6fde", "stroke-width": "1.5"})
    SubElement(root, "path", d=f"M{MARGIN} {top + 20}V{top + 20 + high}H{MARGIN + plot}", fill="none", stroke="#9aa5b1")
