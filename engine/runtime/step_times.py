"""Timing every shape once at start-up, and remembering the times per bundle and machine."""

import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from engine.bundle.variant import ShapeTable, StepShape
from engine.files import MARKER_BYTES, read_bytes
from engine.runtime.interface import PackedBatch, RowLayout, Runtime

FREE_ROWS = (1, 8, 32, 128)
FREE_PASTS = (64, 1024)
MOST_DECODES = 8
BUDGET_S = 20.0


def shapes_to_time(shapes: ShapeTable) -> list[StepShape]:
    """Every fixed shape, or a grid that free shapes are interpolated from; cheapest first.

    Where sequences have caches of their own a column costs the same beside any number of rows: one row tells.
    """
    if not shapes.free:
        return sorted((*shapes.fixed, *shapes.prefill))
    near, *far = sorted({min(past, shapes.max_past) for past in FREE_PASTS})
    rows = sorted({min(count, shapes.max_rows) for count in (*FREE_ROWS, shapes.max_rows)})
    found = [StepShape(count, near) for count in rows]
    return found + [StepShape(count, past) for past in far for count in (rows[:1] if shapes.segmented else rows)]


def measure(
    runtime: Runtime, clock: Callable[[], float], known: Mapping[StepShape, float] = MappingProxyType({})
) -> dict[StepShape, float]:
    """Milliseconds of each shape: the better of two runs after a first one. Begins no new shape after 20 s.

    known: times of an earlier start, which are kept; it may have stopped at its 20 s.
    """
    times = dict(known)
    began = clock()
    for shape in shapes_to_time(runtime.shapes):
        if shape in times:
            continue
        if times and clock() - began > BUDGET_S:
            break
        batch = _empty_batch(runtime.shapes, shape)
        runtime.run(batch)
        runs = []
        for _ in range(2):
            start = clock()
            runtime.run(batch)
            runs.append(1000.0 * (clock() - start))
        times[shape] = max(min(runs), 1e-3)
        runtime.free(0, range(len(batch.segments)))
    return times


def believed(shapes: ShapeTable, times: dict[StepShape, float]) -> dict[StepShape, float]:
    """The times that the scheduler uses: of free shapes only whole lines of a past, of segmented ones all of them."""
    if shapes.fixed:
        return times
    lines = whole_lines(shapes, times)
    return with_columns(lines) if shapes.segmented else lines


def with_columns(times: dict[StepShape, float]) -> dict[StepShape, float]:
    """What one row takes longer over a wider past is added to the times of the other rows.

    Measured beside many rows it would be lost: a hundredth of their time is a third of its own.
    """
    near = [shape for shape in times if shape.past == min(shape.past for shape in times)]
    least = min(near)
    added = {shape.past: max(0.0, times[shape] - times[least]) for shape in times if shape.rows == least.rows}
    return {StepShape(shape.rows, past): times[shape] + more for past, more in added.items() for shape in near}


def whole_lines(shapes: ShapeTable, times: dict[StepShape, float]) -> dict[StepShape, float]:
    """Without the pasts whose rows were not all measured: half a line says nothing true about many rows.

    The first line is kept as far as it goes; costs beyond it are extrapolated.
    """
    wanted = shapes_to_time(shapes)
    whole = {past for past in {shape.past for shape in wanted} if all(s in times for s in wanted if s.past == past)}
    whole.add(wanted[0].past)
    return {shape: milliseconds for shape, milliseconds in times.items() if shape.past in whole}


def is_complete(shapes: ShapeTable, times: dict[StepShape, float]) -> bool:
    """Whether every shape was measured."""
    return all(shape in times for shape in shapes_to_time(shapes))


def _empty_batch(shapes: ShapeTable, shape: StepShape) -> PackedBatch:
    """Rows that see all columns, of which the last one asks for logits: the work of a decode step over a full pool.

    Where sequences have caches of their own, a few decodes share out the columns and ask for logits each, and the other
    rows begin a prompt.
    """
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


def cost_file(folder: Path, manifest_bytes: bytes, threads: int, shapes: ShapeTable) -> Path:
    """Where the times of this bundle on this machine are kept."""
    measured = shapes, shapes_to_time(shapes), MOST_DECODES
    identity = repr((platform.machine(), platform.processor(), os.cpu_count(), threads, *measured)).encode()
    return folder / f"costs-{hashlib.blake2b(manifest_bytes + identity, digest_size=12).hexdigest()}.json"


def load_times(path: Path) -> dict[StepShape, float] | None:
    """Times saved before; None when there are none or they cannot be read."""
    try:
        saved = msgspec.json.decode(read_bytes(path, MARKER_BYTES), type=list[tuple[int, int, float]])
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return {StepShape(rows, past): milliseconds for rows, past, milliseconds in saved}


def save_times(path: Path, times: dict[StepShape, float]) -> None:
    """Save times; a second writer wins whole."""
    rows = [(shape.rows, shape.past, milliseconds) for shape, milliseconds in times.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_bytes(msgspec.json.encode(rows))
    draft.replace(path)
