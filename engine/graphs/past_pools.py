"""The pools of keys and values of a runtime: their widths, what is kept in them, and the host cache's pages.

Legend: L = layers, K = KV heads, D = head size, W = width of a pool, N = rows, M = rows that are kept.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array
from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable
from engine.graphs.buffers import EVERY, Fresh, Pool, zero_codes
from engine.graphs.layout import spans

# A column's keys lie W bytes apart. Written so many at a time, neighbouring columns find their cache lines still there.
KEYS_AT_ONCE = 2048
Cut = list[tuple[slice | Array, slice | Array]]


class PastPools:
    """Sole owner of the pools' bytes. A pool that gets another width is replaced."""

    def __init__(self, manifest: Manifest, shapes: ShapeTable, count: int, width: int) -> None:
        self._shapes = shapes
        self._pools = [Pool(manifest, width, zero_codes(manifest)) for _ in range(count)]
        self._host_cache: dict[bytes, tuple[Array, Array]] = {}
        self._first: tuple[Array, Array] | None = None  # what the first columns hold for good
        self._helper = ThreadPoolExecutor(
            1, thread_name_prefix="keys"
        )  # its half of the keys waits for memory elsewhere
        self.restrides = 0

    def __getitem__(self, index: int) -> Pool:
        return self._pools[index]

    def __len__(self) -> int:
        return len(self._pools)

    def set_width(self, index: int, width: int) -> bool:
        """Give a pool a width; whether it was replaced for that."""
        if self._pools[index].width == width:
            return False
        self._pools[index] = self._pools[index].relaid(width)
        self._restore_first(self._pools[index])
        self.restrides += 1
        return True

    def widen(self, index: int, columns: int) -> bool:
        """Make a pool span so many columns at least; whether it was replaced for that."""
        return columns > self._pools[index].width and self.set_width(index, self._shapes.round_past(columns))

    def keep(
        self, index: int, fresh: Fresh, rows: NDArray[np.int64], columns: NDArray[np.int64], layers: slice = EVERY
    ) -> None:
        """Copy the fresh keys and values of `rows` [M] into `columns` [M], all layers at once. The pool spans them."""
        target = self._pools[index]
        # A slice beyond the end would be empty, and numpy copies one column into an empty slice without a word.
        assert columns.max(initial=-1) < target.width, f"column {columns.max()} of a pool of {target.width}"
        keys, fresh_keys = (array[layers].reshape(-1, array.shape[-1]) for array in (target.keys, fresh.keys))
        cut, middle = spans(rows, columns), len(keys) // 2
        others = self._helper.submit(_write_keys, keys[middle:], fresh_keys[middle:], cut)
        _write_keys(keys[:middle], fresh_keys[:middle], cut)
        for row_span, column_span in cut:
            target.values[layers][..., column_span, :] = fresh.values[layers][..., row_span, :]
        others.result()

    def offload(self, index: int, columns: slice, key: bytes) -> None:
        """Copy keys [L, K, 1, D, 16] and values [L, K, 1, 16, D] of a page's columns to host memory."""
        source = self._pools[index]
        self._host_cache[key] = (source.keys[..., columns].copy(), source.values[..., columns, :].copy())

    def load(self, index: int, columns: slice, key: bytes) -> None:
        """Copy an offloaded page into `columns`, which the pool spans."""
        keys, values = self._host_cache[key]
        self._pools[index].keys[..., columns] = keys
        self._pools[index].values[..., columns, :] = values

    def offloaded(self, key: bytes) -> bytes:
        """A page in host memory: keys [L, K, 1, D, 16], then values [L, K, 1, 16, D]."""
        keys, values = self._host_cache[key]
        return keys.tobytes() + values.tobytes()

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        """Put such bytes into host memory."""
        keys, values = self._pools[0].keys, self._pools[0].values
        flat = np.frombuffer(content, keys.dtype).reshape(2, -1)
        lead, head_dim = keys.shape[:3], values.shape[-1]
        self._host_cache[key] = (flat[0].reshape(*lead, head_dim, -1), flat[1].reshape(*lead, -1, head_dim))

    def write_first(self, keys: Array, values: Array) -> None:
        """Let keys [L, K, 1, D, n] and values [L, K, 1, n, D] be the first n columns of every pool that has them."""
        self._first = (keys, values)
        for pool in self._pools:
            self._restore_first(pool)

    def evict(self, key: bytes) -> None:
        """Forget the copy in host memory; unknown keys are ignored."""
        self._host_cache.pop(key, None)

    def clear(self) -> None:
        """Let go of the memory."""
        self._helper.shutdown()
        self._pools.clear()
        self._host_cache.clear()

    def _restore_first(self, pool: Pool) -> None:
        """A pool that was narrower for a while has lost them."""
        if self._first is not None and self._first[0].shape[-1] <= pool.width:
            keys, values = self._first
            pool.keys[..., : keys.shape[-1]] = keys
            pool.values[..., : keys.shape[-1], :] = values


def _write_keys(keys: Array, fresh: Array, cut: Cut) -> None:
    """Keys [lines, W] and [lines, N]: copy the rows of `cut` to their columns."""
    for start in range(0, len(keys), KEYS_AT_ONCE):
        part, fresh_part = keys[start : start + KEYS_AT_ONCE], fresh[start : start + KEYS_AT_ONCE]
        for row_span, column_span in cut:
            part[:, column_span] = fresh_part[:, row_span]
