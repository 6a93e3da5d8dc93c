"""What steps of a bundle cost on this machine: as an earlier start measured them, or measured once at start-up. Whether
the machine was quiet meanwhile."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

import msgspec

from engine.bundle.manifest import Manifest
from engine.bundle.stored_times import StoredTimes, load_times, of_rows, rows_of, save, times_file
from engine.bundle.variant import ShapeTable, StepShape
from engine.config import EngineConfig
from engine.isolation.machine import busy_seconds, processor_name
from engine.runtime.interface import PackedBatch, RowLayout, Runtime
from engine.worker.settings import ON as SPIN_ON

log = logging.getLogger("hexserve.worker")

MOST_OTHERS = 0.15  # of the cores
LEAST_SEEN_S = 0.25  # systems count busy time in ticks of 10 or 16 ms
MOST_SPREAD = 1.3  # the slower of two runs over the faster
LEAST_SPREAD_MS = 1.0  # what a timer or a page fault takes says nothing about other programs


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Seconds: by the clock, of work of this process, and of work of all cores for whomever, None = not told."""

    clock_s: float
    own_s: float
    busy_s: float | None


def read_machine() -> MachineReading:
    return MachineReading(time.perf_counter(), time.process_time(), busy_seconds())


def others_share(before: MachineReading, after: MachineReading, cores: int) -> float | None:
    """The share of all cores that other programs had; None where it is not told or the time is too short to tell."""
    seen_s, own_s = after.clock_s - before.clock_s, after.own_s - before.own_s
    if before.busy_s is None or after.busy_s is None or seen_s < LEAST_SEEN_S:
        return None
    return max(0.0, (after.busy_s - before.busy_s - own_s) / (seen_s * cores))


def disturbance(runs_ms: Sequence[float], others: float | None) -> str:
    """Why the runs of one step are no use as its time; '' where its two fastest agree and others work little."""
    if others is not None and others > MOST_OTHERS:
        return f"other programs used {others:.0%} of the processor"
    fastest, second, *_ = sorted(runs_ms)
    if second > MOST_SPREAD * fastest and second - fastest > LEAST_SPREAD_MS:
        return f"one run took {second / fastest:.1f} times as long as another"
    return ""


FREE_ROWS = (1, 8, 32, 128)
FREE_PASTS = (64, 1024)
MOST_DECODES = 8
BUDGET_S = 20.0
DISTURBED_S = 4.0  # where other programs work: what is not kept is not worth more
LEAST_RUNS, MOST_RUNS = 2, 16
ATTEMPTS, LATE_ATTEMPTS = 3, 2  # the first run of a shape may be one that warms up
LEAST_MS = 1e-3
AS_BEFORE = "programs disturbed an earlier start"


def shapes_to_time(shapes: ShapeTable) -> list[StepShape]:
    """Every fixed shape, or a grid that free shapes are interpolated from; cheapest first.
    Where sequences have caches of their own a column costs the same beside any number of rows: one row tells. Up to
    twice the most rows of the grid, time grows as before."""
    if not shapes.free:
        return sorted((*shapes.fixed, *shapes.prefill))
    near, *far = sorted({min(past, shapes.max_past) for past in FREE_PASTS})
    widest = shapes.max_rows if shapes.max_rows > 2 * FREE_ROWS[-1] else 0
    rows = sorted({min(count, shapes.max_rows) for count in (*FREE_ROWS, widest) if count})
    found = [StepShape(count, near) for count in rows]
    return found + [StepShape(count, past) for past in far for count in (rows[:1] if shapes.segmented else rows)]


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Milliseconds of each shape. disturbed: why those of some shapes are not to be kept."""

    times: dict[StepShape, float] = field(default_factory=dict)
    disturbed: dict[StepShape, str] = field(default_factory=dict)

    @property
    def kept(self) -> dict[StepShape, float]:
        return {shape: milliseconds for shape, milliseconds in self.times.items() if shape not in self.disturbed}


def measure(
    runtime: Runtime,
    read: Callable[[], MachineReading],
    cores: int = 1,
    known: Mapping[StepShape, float] = MappingProxyType({}),
    disturbed: Mapping[StepShape, float] = MappingProxyType({}),
) -> MeasuredTimes:
    """Milliseconds of each shape: of its fastest run. Begins no new shape after 20 s, or 4 s where other programs
    disturb it.
    Runs that were disturbed are repeated twice within 4 s, then once. known: times of an earlier start, which are kept;
    it may have stopped at its 20 s. disturbed: those that it could not keep; where this start is disturbed too they are
    as good."""
    measured = MeasuredTimes(dict(known))
    began_s = read().clock_s
    for shape in shapes_to_time(runtime.shapes):
        if shape in known:
            continue
        if measured.disturbed and shape in disturbed:
            measured.times[shape], measured.disturbed[shape] = disturbed[shape], AS_BEFORE
            continue
        seconds = read().clock_s - began_s
        if measured.times and seconds > (DISTURBED_S if measured.disturbed else BUDGET_S):
            break
        batch = _empty_batch(runtime.shapes, shape)
        _time_shape(runtime, batch, read, cores, measured, ATTEMPTS if seconds < DISTURBED_S else LATE_ATTEMPTS)
        runtime.blocks.free(range(len(batch.segments)))
        if shape in measured.disturbed:  # times of one start fit each other
            measured.times[shape] = disturbed.get(shape, measured.times[shape])
    return measured


def _time_shape(
    runtime: Runtime,
    batch: PackedBatch,
    read: Callable[[], MachineReading],
    cores: int,
    measured: MeasuredTimes,
    attempts: int,
) -> None:
    runs_ms: list[float] = []
    reason = ""
    for _ in range(attempts):
        readings = _runs(runtime, batch, read, 1 if runs_ms else LEAST_RUNS)
        runs_ms += [1000.0 * (after.clock_s - before.clock_s) for before, after in pairwise(readings)]
        if not (reason := disturbance(runs_ms, others_share(readings[0], readings[-1], cores))):
            break
    measured.times[batch.shape] = max(min(runs_ms), LEAST_MS)
    if reason:
        measured.disturbed[batch.shape] = reason


def _runs(runtime: Runtime, batch: PackedBatch, read: Callable[[], MachineReading], least: int) -> list[MachineReading]:
    """Readings before and after each run: `least` to `MOST_RUNS` of them, until it can be told what others do."""
    readings = [read()]
    for count in range(1, MOST_RUNS + 1):
        runtime.run(batch)
        readings.append(read())
        if count >= least and readings[-1].clock_s - readings[0].clock_s >= LEAST_SEEN_S:
            break
    return readings


def believed(shapes: ShapeTable, times: dict[StepShape, float]) -> dict[StepShape, float]:
    """The times that the scheduler uses: of free shapes only whole lines of a past, of segmented ones all of them."""
    if shapes.fixed:
        return times
    lines = whole_lines(shapes, times)
    return with_columns(lines) if shapes.segmented else lines


def with_columns(times: dict[StepShape, float]) -> dict[StepShape, float]:
    """What one row takes longer over a wider past is added to the times of the other rows.
    Measured beside many rows it would be lost: a hundredth of their time is a third of its own."""
    near = [shape for shape in times if shape.past == min(shape.past for shape in times)]
    least = min(near)
    added = {shape.past: max(0.0, times[shape] - times[least]) for shape in times if shape.rows == least.rows}
    return {StepShape(shape.rows, past): times[shape] + more for past, more in added.items() for shape in near}


def whole_lines(shapes: ShapeTable, times: dict[StepShape, float]) -> dict[StepShape, float]:
    """Without the pasts whose rows were not all measured: half a line says nothing true about many rows.
    The first line is kept as far as it goes; costs beyond it are extrapolated."""
    wanted = shapes_to_time(shapes)
    whole = {past for past in {shape.past for shape in wanted} if all(s in times for s in wanted if s.past == past)}
    whole.add(wanted[0].past)
    return {shape: milliseconds for shape, milliseconds in times.items() if shape.past in whole}


def is_complete(shapes: ShapeTable, times: dict[StepShape, float]) -> bool:
    return all(shape in times for shape in shapes_to_time(shapes))


def _empty_batch(shapes: ShapeTable, shape: StepShape) -> PackedBatch:
    """Rows that see all columns, of which the last one asks for logits: the work of a decode step over a full pool.
    Where sequences have caches of their own, a few decodes share out the columns and ask for logits each, and the other
    rows begin a prompt."""
    layout = RowLayout(shape, shape.rows)
    if longest := shapes.longest_text:
        for length in filter(None, [*[longest] * (shape.rows // longest), shape.rows % longest]):
            layout.add((0,) * length, 0, logits=(length - 1,), block_rows=length)
        return layout.batch(block_size=1)
    if not shapes.segmented:
        logits = () if shape in shapes.prefill else (shape.rows - 1,)
        layout.add((0,) * shape.rows, 0, (0,), shape.past, logits=logits)
        return layout.batch(block_size=max(1, shape.past))
    # A fused graph takes as long over empty caches as over full ones.
    decodes = min(shapes.slots or MOST_DECODES, shape.rows)
    past = 0 if shapes.slots else shape.past // decodes
    if first := shape.rows - decodes:
        layout.add((0,) * first, 0)
    for index in range(decodes):
        blocks = () if shapes.slots else (index,)
        layout.add((0,), 0, blocks, past, logits=(0,) if not shapes.slots or index == decodes - 1 else ())
    return layout.batch(block_size=shape.past if shapes.slots else max(1, past))


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
    stored = load_times(path) or own
    known = stored.of_shapes()
    if is_complete(shapes, known):
        return believed(shapes, known)
    measured = measure(runtime, read_machine, cores, known, of_rows(stored.disturbed))
    _remember(path, own, measured)
    return believed(shapes, measured.times)


def _remember(path: Path, own: StoredTimes, measured: MeasuredTimes) -> None:
    for first in list(measured.disturbed.items())[:1]:
        counts = len(measured.disturbed), len(measured.times)
        log.warning("%d of %d step times are measured again at the next start: while %s ran %s", *counts, *first)
    try:
        others = rows_of({shape: measured.times[shape] for shape in measured.disturbed})
        save(path, msgspec.structs.replace(own, times=rows_of(measured.kept), disturbed=others))
    except OSError as error:
        log.warning("step times cannot be remembered: %s", error)
