"""Writing a pass's keys and values part by part, each while other parts run: they read the pool's other layers only.

Those of the last part are written while the first parts of the next pass run, so that nobody copies between two passes.
Pages that go to host memory take the same thread: they are read out behind all writes of the passes before, and before
anything of the next is written. Nothing that is written is visible: the columns are reserved for these rows, and no
mask shows them before commit. Of floats only rows that are finite so far are written, because a hidden NaN would still
spoil its neighbours.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from engine.graphs.buffers import Fresh
from engine.graphs.past_pools import PastPools
from engine.graphs.runtime import Indices


def _none() -> Indices:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Expected:
    """Rows [M] of one pass and the columns [M] of a pool that they go to."""

    pool: int = 0
    rows: Indices = field(default_factory=_none)
    columns: Indices = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class _Write:
    """Layers of a pass whose keys and values lie in `fresh` until they are written."""

    expected: _Expected
    fresh: Fresh
    layers: slice

    def stands_in_the_way(self, fresh: Fresh, layers: slice) -> bool:
        """Whether a part that gives `layers` of `fresh` may not run yet. Outputs of all shapes share their memory."""
        overlaps = self.layers.start < layers.stop and layers.start < self.layers.stop
        return overlaps or fresh.keys.shape != self.fresh.keys.shape


class EarlyWrites:
    """Owns what is expected of a pass and the thread that writes it. `observe` hears what begins and what ends.

    The owner calls `finish` before anything else touches the pools or their host memory. What goes wrong with a write
    is raised by whatever waits for it: `part_begins`, `left` or `finish`.
    """

    def __init__(self, pools: PastPools, observe: Callable[[str], None]) -> None:
        self._pools = pools
        self._observe = observe
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="early-kv")
        self._due: list[_Write] = []  # computed; begun when the next part does
        self._begun: list[tuple[_Write, Future[None]]] = []
        self._moves: list[Future[None]] = []
        self._next = self._current = _Expected()
        self._written = _none()

    def expect(self, pool: int, rows: Indices, columns: Indices) -> None:
        """What the next pass will keep; columns beyond the pool's present width are left for later."""
        inside = columns < self._pools[pool].width
        self._next = _Expected(pool, rows[inside], columns[inside])

    def begin(self) -> None:
        """The pass begins: what is not written of the one before, and moves of pages, may go on."""
        self._current, self._next, self._written = self._next, _Expected(), _none()
        self._begin_due()

    def part_begins(self, fresh: Fresh, layers: slice) -> None:
        """Before a part runs: until nothing of the pass before that it reads or overwrites is to be written."""
        self._begin_due()
        begun, self._begun = self._begun, []
        waiting = [future for write, future in begun if write.stands_in_the_way(fresh, layers)]
        self._begun = [(write, future) for write, future in begun if future not in waiting]
        _wait(waiting)

    def part_done(self, fresh: Fresh, layers: slice) -> None:
        """These layers have been computed: they are written once the next part runs."""
        if len(self._current.rows) and layers.start < layers.stop:
            self._due.append(_Write(self._current, fresh, layers))

    def end(self) -> None:
        """All layers of the pass have been handed over."""
        self._written = self._current.rows

    def move(self, action: Callable[[], None]) -> None:
        """Copy a page to host memory, or forget a copy, behind everything that was asked for before."""
        self._begin_due()
        self._moves.append(self._thread.submit(action))

    def finish(self) -> None:
        """Until nothing is to be written or moved; raises what went wrong with it."""
        self._begin_due()
        moves, begun = self._moves, self._begun
        self._moves, self._begun = [], []
        _wait([*moves, *(future for _, future in begun)])

    def left(self, rows: Indices, columns: Indices) -> tuple[Indices, Indices]:
        """Those of `rows` [M] of the pass that nobody writes early, with their columns; if any, all else is written."""
        missing = ~np.isin(rows, self._written)
        if missing.any():
            self.finish()
        return rows[missing], columns[missing]

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown()

    def _begin_due(self) -> None:
        due, self._due = self._due, []
        self._begun.extend((write, self._thread.submit(self._write, write)) for write in due)

    def _write(self, write: _Write) -> None:
        expected, fresh, layers = write.expected, write.fresh, write.layers
        name = f"layers {layers.start} to {layers.stop - 1}"
        self._observe(f"writing {name}")
        sound = ~np.isin(expected.rows, fresh.non_finite(expected.rows, layers))
        if sound.any():
            self._pools.keep(expected.pool, fresh, expected.rows[sound], expected.columns[sound], layers)
        self._observe(f"wrote {name}")


def _wait(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()
