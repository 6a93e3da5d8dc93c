"""Keys and values of sequences, each in one stretch of memory of its own, and which page of the pool lies where.

The scheduler counts in pages of a pool; here a page is no place but a name. The pages of a sequence lie side by side in
the cache that the sequence computes into. A page is shared by copying it; a cache that nobody writes beyond the shared
pages is gone on with instead.

Legend: L = layers, K = KV heads, T = columns of a cache, D = head size.
"""

from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

import numpy as np

from engine.bundle.encoding import Array
from engine.bundle.manifest import Manifest
from engine.graphs.batch import PackedBatch, PackedSegment

COLUMN_STEP = 64
PageName = tuple[int, int]  # pool and page
Bound = TypeVar("Bound")


class SequenceCache(Generic[Bound]):
    """Keys and values [L, 1, K, T, D] of one sequence, or of a finished one whose pages may still be wanted.

    pages: what lies in each page's columns, None where nothing does that could be asked for. homes: those of them that
    others must find here, by their index. bound: what a runtime has bound to this memory, dropped when it moves.
    """

    def __init__(self, manifest: Manifest, columns: int) -> None:
        model = manifest.model
        shape = (model.layers, 1, model.kv_heads, columns, model.head_dim)
        self.keys: Array = np.empty(shape, np.dtype(manifest.kv_dtype))
        self.values: Array = np.empty(shape, np.dtype(manifest.kv_dtype))
        self.pages: list[PageName | None] = []
        self.homes: dict[int, PageName] = {}
        self.bound: dict[tuple[int, int], Bound] = {}

    @property
    def columns(self) -> int:
        """Columns there is memory for."""
        return int(self.keys.shape[3])

    def is_free_from(self, index: int) -> bool:
        """Whether nobody would miss what lies in the pages from `index` on."""
        return max(self.homes, default=-1) < index

    def put(self, index: int, page: PageName | None) -> None:
        """Note which page lies at `index`."""
        self.pages.extend([None] * (index + 1 - len(self.pages)))
        self.pages[index] = page

    def take_columns(self, other: "SequenceCache[Bound]", mine: slice, theirs: slice) -> None:
        """Copy columns of another cache."""
        self.keys[..., mine, :] = other.keys[..., theirs, :]
        self.values[..., mine, :] = other.values[..., theirs, :]

    def widen(self, manifest: Manifest, columns: int, used: int) -> None:
        """Move to memory of `columns` columns, of which the first `used` are copied."""
        wider: SequenceCache[Bound] = SequenceCache(manifest, columns)
        wider.take_columns(self, slice(used), slice(used))
        self.keys, self.values = wider.keys, wider.values
        self.bound.clear()


class SequenceCaches(Generic[Bound]):
    """Sole owner of the caches, of what the last pass was, and of the copies that were offloaded.

    A cache lives as long as a page is at home in it, or the last pass wrote it. A pass writes behind the columns that
    its sequences have: what is not kept is overwritten by the next one.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._homes: dict[PageName, tuple[SequenceCache[Bound], int]] = {}
        self._last: tuple[PackedBatch, list[SequenceCache[Bound]]] | None = None
        self._offloaded: dict[bytes, SequenceCache[Bound]] = {}
        self.widened = 0

    def place(self, batch: PackedBatch, least_rows: int = 1) -> list[SequenceCache[Bound]]:
        """For each segment a cache with its past in order and room behind it for its rows, or `least_rows` of them."""
        caches: list[SequenceCache[Bound]] = []
        for segment in batch.segments:
            names = [(batch.pool, page) for page in segment.pages[: -(-segment.past // batch.page_columns)]]
            least = segment.past + max(segment.count, least_rows)
            caches.append(self._cache_for(names, batch.page_columns, (least, max(least, segment.room)), caches))
        self._last = (batch, caches)
        return caches

    @property
    def last(self) -> list[tuple[PackedSegment, SequenceCache[Bound]]]:
        """The segments of the last pass, each with its cache."""
        assert self._last is not None, "before the first pass"
        return list(zip(self._last[0].segments, self._last[1], strict=True))

    def keep(self, pool: int, rows: Sequence[int], columns: Sequence[int]) -> None:
        """Let what `rows` of the last pass have written count, as what lies in the pages of `columns`."""
        assert self._last is not None, "keep before run"
        column_of, size = dict(zip(rows, columns, strict=True)), self._last[0].page_columns
        for segment, cache in self.last:
            for row in range(segment.start, segment.end):
                if row in column_of:
                    index = (segment.past + row - segment.start) // size
                    self._settle(cache, index, (pool, column_of[row] // size))

    def free(self, pool: int, pages: Collection[int]) -> None:
        """Nobody wants these pages; a cache that is nobody's home is gone."""
        for page in pages:
            self._leave((pool, page))

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the columns of one page to a cache of their own. KeyError when the page was never written."""
        size = columns.stop - columns.start
        source, index = self._homes[pool, columns.start // size]
        copy: SequenceCache[Bound] = SequenceCache(self._manifest, size)
        copy.take_columns(source, slice(size), slice(index * size, (index + 1) * size))
        self._offloaded[key] = copy

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Let a page be what was offloaded as `key`."""
        size = columns.stop - columns.start
        copy: SequenceCache[Bound] = SequenceCache(self._manifest, size)
        copy.take_columns(self._offloaded[key], slice(size), slice(size))
        self._settle(copy, 0, (pool, columns.start // size))

    def evict(self, key: bytes) -> None:
        """Forget a copy."""
        self._offloaded.pop(key, None)

    def clear(self) -> None:
        """Let go of everything."""
        self._last = None
        self._homes.clear()
        self._offloaded.clear()

    def caches(self) -> list[SequenceCache[Bound]]:
        """Every cache that is a page's home."""
        return list({id(cache): cache for cache, _ in self._homes.values()}.values())

    def _cache_for(
        self, names: list[PageName], page_columns: int, room: tuple[int, int], busy: list[SequenceCache[Bound]]
    ) -> SequenceCache[Bound]:
        """room: columns that it must have, and those it had better have. busy: what others of the pass write."""
        least, wanted = (-(-columns // COLUMN_STEP) * COLUMN_STEP for columns in room)
        found = self._own(names, busy)
        if found is None:
            found = SequenceCache(self._manifest, wanted)
            self._copy(names, found, page_columns)
        elif found.columns < least:
            found.widen(self._manifest, wanted, len(names) * page_columns)
            self.widened += 1
        return found

    def _own(self, names: list[PageName], busy: list[SequenceCache[Bound]]) -> SequenceCache[Bound] | None:
        """The cache that ends with exactly these pages, if its end is nobody else's to write."""
        home = self._homes.get(names[-1]) if names else None
        if home is None or home[1] != len(names) - 1:
            return None
        cache = home[0]
        is_same = cache.pages[: len(names)] == names and cache.is_free_from(len(names))
        return cache if is_same and all(other is not cache for other in busy) else None

    def _copy(self, names: list[PageName], target: SequenceCache[Bound], size: int) -> None:
        """Put the pages side by side; runs of them that lie so elsewhere are one copy. Unknown ones become zeros."""
        start = 0
        while start < len(names):
            cache, first = self._homes.get(names[start], (None, 0))
            end = start + 1
            while cache and end < len(names) and self._homes.get(names[end]) == (cache, first + end - start):
                end += 1
            mine = slice(start * size, end * size)
            if cache is None:
                target.keys[..., mine, :] = 0
                target.values[..., mine, :] = 0
                self._settle(target, start, names[start])
            else:
                target.take_columns(cache, mine, slice(first * size, (first + end - start) * size))
            for index in range(start, end):
                target.put(index, names[index])
            start = end

    def _settle(self, cache: SequenceCache[Bound], index: int, name: PageName) -> None:
        """From now on the page is what lies at `index` of the cache."""
        if cache.homes.get(index) == name:
            return
        self._leave(name)
        cache.put(index, name)
        cache.homes[index] = name
        self._homes[name] = (cache, index)

    def _leave(self, name: PageName) -> None:
        home = self._homes.pop(name, None)
        if home is not None:
            cache, index = home
            del cache.homes[index]
            cache.pages[index] = None
