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
    """Sole owner of the caches: a cache lives as long as a page is at home in it, or its caller holds it."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._homes: dict[PageName, tuple[SequenceCache[Bound], int]] = {}
        self.widened = 0

    def cache_for(
        self,
        pool: int,
        pages: Sequence[int],
        page_columns: int,
        room: tuple[int, int],
        busy: Collection[SequenceCache[Bound]],
    ) -> SequenceCache[Bound]:
        """The cache in which `pages` lie in order, so that a sequence can go on behind them.

        room: columns it must have, and those it had better have. busy: caches that other sequences of the pass write.
        """
        names = [(pool, page) for page in pages]
        least, wanted = (-(-columns // COLUMN_STEP) * COLUMN_STEP for columns in room)
        found = self._own(names, busy)
        if found is None:
            found = SequenceCache(self._manifest, max(least, wanted))
            self._copy(names, found, page_columns)
        elif found.columns < least:
            found.widen(self._manifest, max(least, wanted), len(names) * page_columns)
            self.widened += 1
        return found

    def settle(self, cache: SequenceCache[Bound], index: int, pool: int, page: int) -> None:
        """From now on the page is what lies at `index` of the cache."""
        name = (pool, page)
        if cache.homes.get(index) == name:
            return
        self._leave(name)
        cache.put(index, name)
        cache.homes[index] = name
        self._homes[name] = (cache, index)

    def free(self, pool: int, pages: Collection[int]) -> None:
        """Nobody wants these pages; a cache that is nobody's home is gone."""
        for page in pages:
            self._leave((pool, page))

    def columns_of(self, pool: int, page: int, page_columns: int) -> tuple[SequenceCache[Bound], slice]:
        """Where a page lies. KeyError when it was never written."""
        cache, index = self._homes[pool, page]
        return cache, slice(index * page_columns, (index + 1) * page_columns)

    def clear(self) -> None:
        """Let go of everything."""
        self._homes.clear()

    def caches(self) -> list[SequenceCache[Bound]]:
        """Every cache that is a page's home, for gauges and checks."""
        return list({id(cache): cache for cache, _ in self._homes.values()}.values())

    def _own(self, names: list[PageName], busy: Collection[SequenceCache[Bound]]) -> SequenceCache[Bound] | None:
        """The cache that ends with exactly these pages, if its end is nobody else's to write."""
        home = self._homes.get(names[-1]) if names else None
        if home is None or home[1] != len(names) - 1:
            return None
        cache = home[0]
        is_same = cache.pages[: len(names)] == names and cache.is_free_from(len(names))
        return cache if is_same and all(other is not cache for other in busy) else None

    def _copy(self, names: list[PageName], target: SequenceCache[Bound], page_columns: int) -> None:
        """Put the pages side by side; runs of them that lie so elsewhere are one copy. Unknown ones are zeros."""
        start = 0
        while start < len(names):
            cache, first = self._homes.get(names[start], (None, 0))
            end = start + 1
            while end < len(names) and self._homes.get(names[end]) == (cache, first + end - start) and cache:
                end += 1
            mine = slice(start * page_columns, end * page_columns)
            if cache is None:
                target.keys[..., mine, :] = 0
                target.values[..., mine, :] = 0
                self.settle(target, start, *names[start])
            else:
                target.take_columns(cache, mine, slice(first * page_columns, (first + end - start) * page_columns))
            for index in range(start, end):
                target.put(index, names[index])
            start = end

    def _leave(self, name: PageName) -> None:
        home = self._homes.pop(name, None)
        if home is not None:
            cache, index = home
            del cache.homes[index]
            cache.pages[index] = None
