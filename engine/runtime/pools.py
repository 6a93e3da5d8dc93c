"""The pool of keys and values: its width, what is written to it and when, and copies of blocks in host memory.
A step's keys and values are written part by part, while other parts run: those read the pool's other layers only. Those
of the last part are written while the first parts of the next step run, so that nobody copies between two steps. Blocks
that go to host memory take the same thread: they are read out behind all writes of the steps before, and before
anything of the next is written. Nothing that is written is visible: the columns are reserved for these rows, and no
mask shows them before commit. Of floats only rows that are finite so far are written, because a hidden NaN would still
spoil its neighbours.
Legend: L = layers, K = KV heads, D = head size, W = width of a pool, N = rows, M = rows that are kept."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from engine.bundle.manifest import Manifest
from engine.bundle.tensors import Array, Place, pool_window_slots
from engine.runtime.buffers import EVERY, Fresh, Pool, spans, zero_codes
from engine.runtime.interface import Indices
from engine.runtime.window_columns import WindowColumns

# A column's keys lie W bytes apart. Written so many at a time, neighbouring columns find their cache lines still there.
KEYS_AT_ONCE = 2048
Cut = list[tuple[slice | Array, slice | Array]]
Targets = tuple[Indices, Indices]  # columns [M] of layers that see everything and of those with a window


class PastPool:
    """Sole owner of the pool's bytes. Its columns are replaced when it gets another width.
    Where layers with a window have fewer columns than others, `columns` are those of the others; copies on the host
    hold these alone, as no sequence goes on from a copy of a window."""

    def __init__(self, manifest: Manifest, width: int) -> None:
        zeros, most = zero_codes(manifest), pool_window_slots(manifest)
        layers = range(manifest.model.layers)
        self._window_layers = [each for each in layers if most and manifest.model.attention_of(each).window]
        self._full_layers = [each for each in layers if each not in self._window_layers]
        self.columns = Pool(manifest, width, zeros[:, self._full_layers])
        self.windows = WindowColumns(width, most) if most else None
        self._window_pool = Pool(manifest, min(width, most), zeros[:, self._window_layers])
        self._host_cache: dict[bytes, tuple[Array, Array]] = {}
        self._first: tuple[Array, Array] | None = None  # what the first columns hold for good
        # Its half of the keys waits for memory elsewhere.
        self._helper = ThreadPoolExecutor(1, thread_name_prefix="keys")
        self.relayouts = 0

    @property
    def width(self) -> int:
        return self.columns.width

    def set_width(self, width: int) -> None:
        if self.width != width:
            shared = slice(min(width, self.width))
            self.columns = self.columns.relaid(width, [(shared, shared)])
            self._restore_first()
            self.relayouts += 1
            if self.windows is not None:
                moves = self.windows.relay(width)
                self._window_pool = self._window_pool.relaid(self.windows.columns, moves)

    def past(self, place: Place) -> Array:
        """What a graph takes: keys [K, 1, D, W] or values [K, 1, W, D] of a layer, or of a head of it."""
        is_own = place.layer in self._window_layers
        pool, layers = (self._window_pool, self._window_layers) if is_own else (self.columns, self._full_layers)
        return replace(place, layer=layers.index(place.layer)).of(pool.keys, pool.values)

    def targets(self, slots: Indices) -> Targets:
        """Where the slots [M] lie in both kinds of layers; StepFailed where those with a window have no room."""
        return slots, slots if self.windows is None else self.windows.place(slots)

    def keep(self, fresh: Fresh, rows: Indices, targets: Targets, layers: slice = EVERY) -> None:
        """Copy the fresh keys and values of `rows` [M] to their targets, all layers at once. The pool spans them."""
        if self.windows is None:
            self._write(self.columns, layers, (fresh.keys[layers], fresh.values[layers]), rows, targets[0])
            return
        wanted = range(len(fresh.keys))[layers]
        kinds = (self.columns, self._full_layers, targets[0]), (self._window_pool, self._window_layers, targets[1])
        for pool, own, columns in kinds:
            if taken := [each for each in own if each in wanted]:
                first = own.index(taken[0])
                part = fresh.keys[taken], fresh.values[taken]
                self._write(pool, slice(first, first + len(taken)), part, rows, columns)

    def _write(self, target: Pool, layers: slice, fresh: tuple[Array, Array], rows: Indices, columns: Indices) -> None:
        # A slice beyond the end would be empty, and numpy copies one column into an empty slice without a word.
        assert columns.max(initial=-1) < target.width, f"column {columns.max()} of a pool of {target.width}"
        keys, fresh_keys = (array.reshape(-1, array.shape[-1]) for array in (target.keys[layers], fresh[0]))
        cut, middle = spans(rows, columns), len(keys) // 2
        others = self._helper.submit(_write_keys, keys[middle:], fresh_keys[middle:], cut)
        _write_keys(keys[:middle], fresh_keys[:middle], cut)
        for row_span, column_span in cut:
            target.values[layers][..., column_span, :] = fresh[1][..., row_span, :]
        others.result()

    def offload(self, columns: slice, key: bytes) -> None:
        """Copy keys [L, K, 1, D, 16] and values [L, K, 1, 16, D] of a block's columns to host memory."""
        keys, values = self.columns.keys, self.columns.values
        self._host_cache[key] = keys[..., columns].copy(), values[..., columns, :].copy()

    def load(self, columns: slice, key: bytes) -> None:
        self.columns.keys[..., columns], self.columns.values[..., columns, :] = self._host_cache[key]

    def offloaded(self, key: bytes) -> bytes:
        """A block in host memory: keys [L, K, 1, D, 16], then values [L, K, 1, 16, D]."""
        keys, values = self._host_cache[key]
        return keys.tobytes() + values.tobytes()

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        keys, values = self.columns.keys, self.columns.values
        flat = np.frombuffer(content, keys.dtype).reshape(2, -1)
        lead, head_dim = keys.shape[:3], values.shape[-1]
        self._host_cache[key] = (flat[0].reshape(*lead, head_dim, -1), flat[1].reshape(*lead, -1, head_dim))

    def write_first(self, keys: Array, values: Array) -> None:
        """Let keys [L, K, 1, D, n] and values [L, K, 1, n, D] be the first n columns always. The pool spans them."""
        self._first = (keys, values)
        self._restore_first()

    def evict(self, key: bytes) -> None:
        self._host_cache.pop(key, None)

    def clear(self) -> None:
        self._helper.shutdown()
        del self.columns, self._window_pool
        self._host_cache.clear()

    def _restore_first(self) -> None:
        """A pool that was narrower for a while has lost them."""
        if self._first is not None and self._first[0].shape[-1] <= self.width:
            keys, values = self._first
            self.columns.keys[..., : keys.shape[-1]] = keys
            self.columns.values[..., : keys.shape[-1], :] = values


def _write_keys(keys: Array, fresh: Array, cut: Cut) -> None:
    """Keys [lines, W] and [lines, N]: copy the rows of `cut` to their columns."""
    for start in range(0, len(keys), KEYS_AT_ONCE):
        part, fresh_part = keys[start : start + KEYS_AT_ONCE], fresh[start : start + KEYS_AT_ONCE]
        for row_span, column_span in cut:
            part[:, column_span] = fresh_part[:, row_span]


NOTHING: Indices = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class _Write:
    """Rows [M] and layers of a step whose keys and values lie in `fresh` until they are written to `targets`."""

    rows: Indices
    targets: Targets
    fresh: Fresh
    layers: slice

    def stands_in_the_way(self, fresh: Fresh, layers: slice) -> bool:
        """Whether a part that gives `layers` of `fresh` may not run yet. Outputs of all shapes share their memory."""
        overlaps = self.layers.start < layers.stop and layers.start < self.layers.stop
        return overlaps or fresh.keys.shape != self.fresh.keys.shape


class KvWrites:
    """The one way of keys and values into the pool.
    The owner calls `finish` before anything else touches the pool or its host memory. What goes wrong with a write is
    raised by whatever waits for it: `part_begins`, `write` or `finish`."""

    def __init__(self, pool: PastPool) -> None:
        self._pool = pool
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kv-writes")
        self._due: list[_Write] = []  # computed; begun when the next part does
        self._begun: list[tuple[_Write, Future[None]]] = []
        self._moves: list[Future[None]] = []
        self._early: tuple[Indices, Targets] = NOTHING, (NOTHING, NOTHING)
        self._written = NOTHING

    def begin(self, rows: Indices, slots: Indices) -> None:
        """A step begins, of which `rows` [M] may be written to `slots` [M] as soon as their part has run.
        Slots beyond the pool's present width are left for later. What is due of the step before may go on."""
        inside = slots < self._pool.width
        self._early, self._written = (rows[inside], self._pool.targets(slots[inside])), NOTHING
        self._begin_due()

    def part_begins(self, fresh: Fresh, layers: slice) -> None:
        """Before a part runs: until nothing of the step before that it reads or overwrites is to be written."""
        self._begin_due()
        waiting = [future for write, future in self._begun if write.stands_in_the_way(fresh, layers)]
        self._begun = [(write, future) for write, future in self._begun if future not in waiting]
        _wait(waiting)

    def part_done(self, fresh: Fresh, layers: slice) -> None:
        """These layers have been computed: they are written once the next part runs."""
        if len(self._early[0]) and layers.start < layers.stop:
            self._due.append(_Write(*self._early, fresh, layers))

    def end(self) -> None:
        """All layers of the step have been handed over."""
        self._written = self._early[0]

    def left(self, rows: Indices, slots: Indices) -> tuple[Indices, Indices]:
        """Those of `rows` [M] of the step that nobody writes early, with their slots."""
        missing = ~np.isin(rows, self._written)
        return rows[missing], slots[missing]

    def write(self, fresh: Fresh, rows: Indices, slots: Indices, is_beside: bool) -> None:
        """Write all layers of `rows` [M] to `slots` [M], which the pool spans: beside the loop, or before returning."""
        targets = self._pool.targets(slots)
        if is_beside:
            self._begin_due()
            self._begin(_Write(rows, targets, fresh, slice(0, len(fresh.keys))))
        else:
            self.finish()
            self._pool.keep(fresh, rows, targets)

    def move(self, action: Callable[[], None]) -> None:
        self._begin_due()
        self._moves = [each for each in self._moves if not each.done() or each.exception()]
        self._moves.append(self._thread.submit(action))

    def finish(self) -> None:
        """Until nothing is to be written or moved; raises what went wrong with it."""
        self._begin_due()
        moves, begun = self._moves, self._begun
        self._moves, self._begun = [], []
        _wait([*moves, *(future for _, future in begun)])

    def close(self) -> None:
        self._thread.shutdown()

    def _begin_due(self) -> None:
        due, self._due = self._due, []
        for write in due:
            self._begin(write)

    def _begin(self, write: _Write) -> None:
        self._begun.append((write, self._thread.submit(self._run, write)))

    def _run(self, write: _Write) -> None:
        sound = ~np.isin(write.rows, write.fresh.non_finite(write.rows, write.layers))
        if sound.any():
            full, behind = write.targets
            self._pool.keep(write.fresh, write.rows[sound], (full[sound], behind[sound]), write.layers)


def _wait(futures: list[Future[None]]) -> None:
    for future in futures:
        future.result()
