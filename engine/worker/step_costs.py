"""What steps of a bundle cost on this machine: as an earlier start measured them, or measured now."""

import logging
import os
import time
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest
from engine.bundle.stored_times import StoredTimes, load_times, of_rows, rows_of, save_times, times_file
from engine.bundle.variant import ShapeTable, StepShape
from engine.config import EngineConfig
from engine.isolation.machine import busy_seconds, processor_name
from engine.runtime.interface import Runtime
from engine.runtime.step_times import (
    MOST_DECODES,
    MachineReading,
    MeasuredTimes,
    believed,
    is_complete,
    measure,
    shapes_to_time,
)
from engine.worker.settings import ON as SPIN_ON

log = logging.getLogger("hexserve.worker")


def step_times(folder: Path, manifest: Manifest, config: EngineConfig, runtime: Runtime) -> dict[StepShape, float]:
    """Milliseconds of the shapes; none where what a step costs is how long its sequences are."""
    if config.deterministic or manifest.reads_whole_context or manifest.speech is not None:
        return {}
    shapes, cores = runtime.shapes, os.cpu_count() or 1
    if not config.cost_cache:
        return believed(shapes, measure(runtime, read_machine, cores).times)
    own = StoredTimes((), processor_name(), cores, config.threads, _how(config))
    path = _file(folder, manifest, Path(config.cost_cache), own, shapes)
    stored = load_times(path)
    known = stored.of_shapes() if stored is not None else {}
    disturbed = of_rows(stored.disturbed) if stored is not None else {}
    if is_complete(shapes, known):
        return believed(shapes, known)
    measured = measure(runtime, read_machine, cores, known, disturbed)
    _remember(path, own, measured)
    return believed(shapes, measured.times)


def read_machine() -> MachineReading:
    """The clocks of now."""
    return MachineReading(time.perf_counter(), time.process_time(), busy_seconds())


def _how(config: EngineConfig) -> str:
    """What else changes a step: under a window attention takes another graph, over other columns."""
    window = f"window {config.window} + {config.sinks}" if config.window else ""
    return ", ".join(filter(None, (window, "spinning" if config.spin == SPIN_ON else "")))


def _file(folder: Path, manifest: Manifest, cache: Path, own: StoredTimes, shapes: ShapeTable) -> Path:
    graphs = [graph.name for graph in manifest.graphs]
    measured = graphs, shapes, shapes_to_time(shapes), MOST_DECODES
    return times_file(cache, folder, own.processor, own.cores, own.threads, own.how, *measured)


def _remember(path: Path, own: StoredTimes, measured: MeasuredTimes) -> None:
    for shape, reason in list(measured.disturbed.items())[:1]:
        log.warning(
            "%d of %d step times are measured again at the next start: while %s ran %s",
            len(measured.disturbed),
            len(measured.times),
            shape,
            reason,
        )
    try:
        others = rows_of({shape: measured.times[shape] for shape in measured.disturbed})
        kept = msgspec.structs.replace(own, times=rows_of(measured.kept), disturbed=others)
        save_times(path, kept)
    except OSError as error:
        log.warning("step times cannot be remembered: %s", error)
