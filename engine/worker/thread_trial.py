"""How many threads multiply, and whether they spin: tried once on a machine, with matrices of the first large model.

`python -m engine.worker.thread_trial THREADS on|off FOLDER`: tries one choice and writes its times as JSON.
A process has one pool of threads that spin, so each choice is tried in a process of its own."""

import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, load_manifest
from engine.bundle.segments import LINEAR_DATA
from engine.bundle.stored_times import StoredThreads, ThreadTimes, load_threads, save, threads_file
from engine.bundle.tensors import Array
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.isolation.machine import processor_name, usable_cores
from engine.processes import exit_text, module_command
from engine.runtime.onnx_library import ort
from engine.runtime.qnn.reader import run_apart
from engine.runtime.qnn.trial import check_files
from engine.runtime.sessions import cpu_provider, open_graph
from engine.worker.settings import AUTO_SPIN, OFF, ON, is_large
from engine.worker.step_times import MOST_OTHERS, others_share, read_machine

log = logging.getLogger("hexserve.worker")

TRIAL_BYTES = 96_000_000  # of matrices: more than caches of a processor hold
FEW, MANY = 1, 32  # rows: of a decode, of a chunk
LEAST_ROUNDS, TRIAL_S = 3, 0.6
TIMEOUT_S = 30.0
ATTEMPTS = 3
LEAST_GAIN = 1.05  # of another choice over the one before: less is noise

Try = Callable[[int, bool], ThreadTimes]


def resolve_threads(folder: Path, manifest: Manifest, config: EngineConfig, try_one: Try | None = None) -> EngineConfig:
    """The settings with the threads and `spin` that won on this machine, for a large model and unless `spin` is set.
    Tried when the first such model of segments starts; what other programs disturbed, at the next start again.
    BundleError for a bundle that is damaged: it is checked before any of it is opened."""
    if config.spin != AUTO_SPIN or config.deterministic or not config.cost_cache or not is_large(manifest):
        return config
    processor, cores = processor_name(), usable_cores()
    path = threads_file(Path(config.cost_cache), processor, cores, config.threads, ort.__version__)
    stored = load_threads(path)
    if stored is None and manifest.is_segmented:
        check_files(folder, manifest, Path(config.cost_cache))
        stored = _tried(processor, cores, config.threads, try_one or apart(folder))
        _remember(path, stored)
    if stored is None or not stored.tried:
        return config
    best = fastest(stored.tried)
    return replace(config, threads=best.threads, spin=ON if best.spins else OFF)


def thread_counts(cores: int, asked: int = 0) -> tuple[int, ...]:
    """What is tried: as many as cores, then three quarters and half of them, as two of a core's threads share a
    multiplier; only what was asked for, if anything."""
    return (asked,) if asked else tuple(dict.fromkeys(max(min(2, cores), cores * part // 4) for part in (4, 3, 2)))


def fastest(tried: Sequence[ThreadTimes]) -> ThreadTimes:
    """The first, unless a later one is 5 % faster: by the geometric mean of few and many rows."""
    best = tried[0]
    for other in tried[1:]:
        if LEAST_GAIN * math.sqrt(other.few_ms * other.many_ms) < math.sqrt(best.few_ms * best.many_ms):
            best = other
    return best


def _tried(processor: str, cores: int, asked: int, try_one: Try) -> StoredThreads | None:
    """Every count with threads that spin, then the best with threads that sleep; None after a line in the log."""
    began = time.monotonic()
    try:
        tried = [_quiet(try_one, threads, True) for threads in thread_counts(cores, asked)]
        tried.append(_quiet(try_one, fastest(tried).threads, False))
    except NotTried as reason:
        log.warning("threads are tried again at the next start: %s", reason)
        return None
    best = fastest(tried)
    took = time.monotonic() - began
    log.info("threads: %d that %s, tried in %.1f s", best.threads, "spin" if best.spins else "sleep", took)
    return StoredThreads(tuple(tried), processor, cores)


def _quiet(try_one: Try, threads: int, spins: bool) -> ThreadTimes:
    """Times that other programs did not disturb. Twice tried again: a server that begins is such a program."""
    for _ in range(ATTEMPTS):
        if (found := try_one(threads, spins)).others <= MOST_OTHERS:
            return found
    raise NotTried(f"other programs used {found.others:.0%} of the processor")


def _remember(path: Path, stored: StoredThreads | None) -> None:
    try:
        if stored is not None:
            save(path, stored)
    except OSError as error:
        log.warning("what was tried of threads cannot be remembered: %s", error)


class NotTried(Exception):
    """Why a choice has no times."""


def apart(folder: Path) -> Try:
    """Tries a choice in a process of its own."""

    def try_one(threads: int, spins: bool) -> ThreadTimes:
        command = module_command("engine.worker.thread_trial", str(threads), ON if spins else OFF)
        done = run_apart(command, folder, TIMEOUT_S)
        if done is None:
            raise NotTried(f"{threads} took more than {TIMEOUT_S:g} s")
        if done.returncode != 0:
            errors = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise NotTried(f"the process {exit_text(done.returncode)}: {errors[-1] if errors else 'it said nothing'}")
        try:
            return msgspec.json.decode(done.stdout.splitlines()[-1], type=ThreadTimes)
        except (IndexError, msgspec.MsgspecError) as error:
            raise NotTried(f"what the process wrote is no answer: {error}") from None

    return try_one


def time_threads(folder: Path, threads: int, spins: bool, trial_s: float = TRIAL_S) -> ThreadTimes:
    """Milliseconds of some linear graphs of the bundle. BundleError when one does not open."""
    manifest = load_manifest(folder)
    provider = cpu_provider(threads, spins)
    graphs = [(open_graph(folder, graph, provider), graph) for graph in some_graphs(manifest)]
    before = read_machine()
    took_ms: dict[int, list[float]] = {FEW: [], MANY: []}
    feeds = {count: [_feed(graph, count) for _, graph in graphs] for count in took_ms}
    for count in _rounds(trial_s):
        began = time.perf_counter()
        for (session, _), feed in zip(graphs, feeds[count], strict=True):
            session.run(None, feed)
        took_ms[count].append(1000.0 * (time.perf_counter() - began))
    others = others_share(before, read_machine(), os.cpu_count() or 1) or 0.0
    few, many = (min(runs[1:]) for runs in took_ms.values())  # the first run of a shape makes room for it
    return ThreadTimes(threads, spins, few, many, others)


def _rounds(trial_s: float) -> Iterator[int]:
    """Counts of rows in turns, some rounds of them at least."""
    began, rounds = time.perf_counter(), 0
    while rounds <= LEAST_ROUNDS or time.perf_counter() - began < trial_s:
        yield from (FEW, MANY)
        rounds += 1


def some_graphs(manifest: Manifest) -> Iterable[GraphSpec]:
    """Linear graphs of whole layers with about so many bytes; the first and the last graph are not of this kind."""
    linear = [graph for graph in manifest.graphs if graph.kind is GraphKind.LINEAR]
    middle = linear[1:-1] or linear
    each = max(1, manifest.files[LINEAR_DATA].bytes // len(linear))
    return middle[: max(1, TRIAL_BYTES // each)]


def _feed(graph: GraphSpec, rows: int) -> dict[str, Array]:
    """Ones for every input: zeros would be rounded by a scale of zero. Indices are the first."""
    shapes = {
        spec.name: (spec.dtype, [rows if isinstance(size, str) else size for size in spec.shape])
        for spec in graph.inputs
    }
    return {name: (np.ones if "float" in dtype else np.zeros)(shape, dtype) for name, (dtype, shape) in shapes.items()}


def main(argv: Sequence[str]) -> None:
    threads, spins, folder = argv
    try:
        sys.stdout.buffer.write(msgspec.json.encode(time_threads(Path(folder), int(threads), spins == ON)))
    except BundleError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
