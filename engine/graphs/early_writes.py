"""Writing a pass's keys and values part by part, while the parts behind run: they read the pool's other layers only.

Pages that go to host memory take the same thread: they are read out while the pass runs, before anything it gives is
written. Nothing that is written is visible: the columns are reserved for these rows, and no mask shows them before
commit. Of floats only rows that are finite so far are written, because a hidden NaN would still spoil its neighbours.
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


class EarlyWrites:
    """Owns what is expected of a pass and the thread that writes it. `observe` hears what begins and what ends.

    The owner calls `finish` before anything else touches the pools or their host memory, or the outputs of the pass.
    """

    def __init__(self, pools: PastPools, observe: Callable[[str], None]) -> None:
        self._pools = pools
        self._observe = observe
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="early-kv")
        self._pending: list[Future[None]] = []
        self._moves: list[Future[None]] = []
        self._next = self._current = _Expected()
        self._written = _none()

    def expect(self, pool: int, rows: Indices, columns: Indices) -> None:
        """What the next pass will keep; columns beyond the pool's present width are left for later."""
        inside = columns < self._pools[pool].width
        self._next = _Expected(pool, rows[inside], columns[inside])

    def begin(self) -> None:
        """The pass begins: its outputs are free, moves of pages may go on."""
        self._wait(self._pending)
        self._current, self._next, self._written = self._next, _Expected(), _none()

    def part_done(self, fresh: Fresh, layers: slice) -> None:
        """These layers have been computed: begin to write them."""
        if len(self._current.rows) and layers.start < layers.stop:
            self._pending.append(self._thread.submit(self._write, self._current, fresh, layers))

    def end(self) -> None:
        """All layers of the pass have been handed over."""
        self._written = self._current.rows

    def move(self, action: Callable[[], None]) -> None:
        """Copy a page to host memory, or forget a copy, behind everything that was asked for before."""
        self._moves.append(self._thread.submit(action))

    def finish(self) -> None:
        """Until nothing is being written or moved; raises what went wrong with it."""
        self._wait(self._moves)
        self._wait(self._pending)

    def left(self, rows: Indices, columns: Indices) -> tuple[Indices, Indices]:
        """Those of `rows` [M] of the pass that are not in the pool yet, with their columns."""
        self.finish()
        missing = ~np.isin(rows, self._written)
        return rows[missing], columns[missing]

    def close(self) -> None:
        """Let the thread end."""
        self._thread.shutdown()

    @staticmethod
    def _wait(futures: list[Future[None]]) -> None:
        waiting = list(futures)
        futures.clear()
        for future in waiting:
            future.result()

    def _write(self, expected: _Expected, fresh: Fresh, layers: slice) -> None:
        name = f"layers {layers.start} to {layers.stop - 1}"
        self._observe(f"writing {name}")
        sound = ~np.isin(expected.rows, fresh.non_finite(expected.rows, layers))
        if sound.any():
            self._pools.keep(expected.pool, fresh, expected.rows[sound], expected.columns[sound], layers)
        self._observe(f"wrote {name}")
