"""What steps of a bundle cost on this machine: as an earlier start measured them, or measured now."""

import logging
import os
import time
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest
from engine.bundle.stored_times import StoredTimes, load_times, of_rows, rows_of, save_times, times_file
from engine.bundle.variant import StepShape
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
    # What else changes a step: under a window attention takes another graph, over other columns.
    window = f"window {config.window} + {config.sinks}" if config.window else ""
    how = ", ".join(filter(None, (window, "spinning" if config.spin == SPIN_ON else "")))
    own = StoredTimes((), processor_name(), cores, config.threads, how)
    measured_ones = [graph.name for graph in manifest.graphs], shapes, shapes_to_time(shapes), MOST_DECODES
    machine = own.processor, own.cores, own.threads, own.how
    path = times_file(Path(config.cost_cache), folder, *machine, *measured_ones)
    stored = load_times(path)
    known = stored.of_shapes() if stored is not None else {}
    disturbed = of_rows(stored.disturbed) if stored is not None else {}
    if is_complete(shapes, known):
        return believed(shapes, known)
    measured = measure(runtime, read_machine, cores, known, disturbed)
    _remember(path, own, measured)
    return believed(shapes, measured.times)


def read_machine() -> MachineReading:
    return MachineReading(time.perf_counter(), time.process_time(), busy_seconds())


def _remember(path: Path, own: StoredTimes, measured: MeasuredTimes) -> None:
    for first in list(measured.disturbed.items())[:1]:
        counts = len(measured.disturbed), len(measured.times)
        log.warning("%d of %d step times are measured again at the next start: while %s ran %s", *counts, *first)
    try:
        others = rows_of({shape: measured.times[shape] for shape in measured.disturbed})
        save_times(path, msgspec.structs.replace(own, times=rows_of(measured.kept), disturbed=others))
    except OSError as error:
        log.warning("step times cannot be remembered: %s", error)
