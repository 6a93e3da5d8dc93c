"""Keys and values of sequences, each in one stretch of memory of its own, and which page of the pool lies where.

The scheduler counts in pages of a pool; here a page is no place but a name. The pages of a sequence lie side by side in
the cache that the sequence computes into. A cache that nobody writes beyond the shared pages is gone on with. Otherwise
a long run of shared pages becomes a base: a cache that nobody writes, as long as the run, on which any number of others
stand and hold only what comes behind. Pages of shorter runs are copied.

So memory follows what the scheduler counts, each shared page once, but for short runs, the steps that caches grow in, a
last page that keeps its whole cache, and a base that is still read while parts of it are in a longer or shorter one.

Legend: L = layers with keys and values, K = KV heads, T = columns of a cache, D = head size.
"""

from collections.abc import Callable, Collection, Sequence
from itertools import takewhile
from typing import Generic, TypeVar

import numpy as np

from engine.bundle.encoding import Array
from engine.bundle.manifest import Manifest
from engine.graphs.batch import PackedBatch, PackedSegment

COLUMN_STEP = 64
KEPT_PLACES = 4  # rows of a pass that a cache stays bound to: decodes mostly stay where they are
PageName = tuple[int, int]  # pool and page
Bound = TypeVar("Bound")


class SequenceCache(Generic[Bound]):
    """Keys and values [L, 1, K, T, D] of one sequence, or of a finished one whose pages may still be wanted.

    pages: what lies in each page's columns, None where nothing does that could be asked for. homes: those of them that
    others must find here, by their index. bound: what a runtime has bound to this memory, dropped when it moves.
    base: where the sequence's first `base_columns` columns lie; memory here begins with the column behind them.
    """

    def __init__(
        self, manifest: Manifest, columns: int, base: "SequenceCache[Bound] | None" = None, base_columns: int = 0
    ) -> None:
        model = manifest.model
        shape = (len(model.attention_layers), 1, model.kv_heads, columns, model.head_dim)
        self.keys: Array = np.empty(shape, np.dtype(manifest.kv_dtype))
        self.values: Array = np.empty(shape, np.dtype(manifest.kv_dtype))
        self.pages: list[PageName | None] = []
        self.homes: dict[int, PageName] = {}
        self.bound: dict[tuple[int, ...], Bound] = {}
        self.base = base
        self.base_columns = base_columns
        self.is_base = False
        self.is_lent = False  # whether pages of it have been copied
        self._unclean = columns

    @property
    def columns(self) -> int:
        """Columns there is memory for."""
        return int(self.keys.shape[3])

    @property
    def bytes(self) -> int:
        """Memory held here, the base's not counted."""
        return self.keys.nbytes + self.values.nbytes

    def new_columns(self, segment: PackedSegment) -> slice:
        """Where in this memory the keys and values of the segment's rows go."""
        start = segment.past - self.base_columns
        return slice(start, start + segment.count)

    def is_of(self, names: list[PageName], page_columns: int) -> bool:
        """Whether exactly these pages are what a sequence that goes on here would see first."""
        before = self.base.pages[: self.base_columns // page_columns] if self.base else []
        return [*before, *self.pages][: len(names)] == names

    def clean_behind(self, end: int) -> None:
        """Make what lies behind the first `end` columns zeros: under a mask it still counts as 0 times its value."""
        self.keys[..., end : self._unclean, :] = 0
        self.values[..., end : self._unclean, :] = 0
        self._unclean = end

    def bound_at(self, place: tuple[int, ...], make: Callable[[tuple[int, ...]], Bound]) -> Bound:
        """What is bound to this memory for one place among the rows of a pass, from an earlier pass or made now."""
        found = self.bound.pop(place, None) or make(place)
        self.bound[place] = found
        if len(self.bound) > KEPT_PLACES:
            del self.bound[next(iter(self.bound))]
        return found

    def expect_writes(self, end: int) -> None:
        """A pass may leave anything in the columns before `end`."""
        self._unclean = max(self._unclean, end)

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
        self.keys, self.values, self._unclean = wider.keys, wider.values, columns
        self.bound.clear()


class SequenceCaches(Generic[Bound]):
    """Sole owner of the caches, of what the last pass was, and of the copies that were offloaded.

    A cache lives as long as a page is at home in it, the last pass wrote it, or another such cache stands on it. A pass
    writes behind the columns that its sequences have: what is not kept is overwritten by the next one.
    least_shared: a base has so many columns at least; None = shared pages are always copied.
    """

    def __init__(self, manifest: Manifest, least_shared: int | None = None) -> None:
        self._manifest = manifest
        self._least_shared = least_shared
        self._homes: dict[PageName, tuple[SequenceCache[Bound], int]] = {}
        self._last: tuple[PackedBatch, list[SequenceCache[Bound]]] | None = None
        self._offloaded: dict[bytes, SequenceCache[Bound]] = {}
        self.widened = 0

    def place(self, batch: PackedBatch, least_rows: int = 1) -> list[SequenceCache[Bound]]:
        """For each segment a cache with its past in order and room behind it for its rows, or `least_rows` of them."""
        caches: list[SequenceCache[Bound]] = []
        for segment in batch.segments:
            least = segment.past + max(segment.count, least_rows)
            found = self._cache_for(batch, segment, least, caches)
            found.expect_writes(least - found.base_columns)
            caches.append(found)
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
                    index = (segment.past - cache.base_columns + row - segment.start) // size
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

    def offloaded(self, key: bytes) -> bytes:
        """The copy of a page: keys [L, 1, K, 16, D], then values of the same shape."""
        copy = self._offloaded[key]
        return copy.keys.tobytes() + copy.values.tobytes()

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        """Put such bytes where `load` finds them."""
        flat = np.frombuffer(content, np.dtype(self._manifest.kv_dtype)).reshape(2, -1)
        model = self._manifest.model
        copy: SequenceCache[Bound] = SequenceCache(
            self._manifest, flat.shape[1] // (model.layers * model.kv_heads * model.head_dim)
        )
        copy.keys[...], copy.values[...] = (side.reshape(copy.keys.shape) for side in flat)
        self._offloaded[key] = copy

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

    @property
    def bytes(self) -> int:
        """Memory that is held: caches, the bases they stand on, and offloaded copies."""
        last = self._last[1] if self._last else []
        held = [*self.caches(), *last, *self._offloaded.values()]
        held += [cache.base for cache in held if cache.base]
        return sum({id(cache): cache.bytes for cache in held}.values())

    def _cache_for(
        self, batch: PackedBatch, segment: PackedSegment, least: int, busy: list[SequenceCache[Bound]]
    ) -> SequenceCache[Bound]:
        """least: columns that it must have, the base's counted. busy: what others of the pass write.

        Behind a base nothing is reserved: there are many such caches, and every column they have is computed with.
        """
        size = batch.page_columns
        names = [(batch.pool, page) for page in segment.pages[: -(-segment.past // size)]]
        found = self._own(names, size, busy)
        if found is None:
            base, count = self._base_for(names[: segment.past // size], size, busy)
            return self._new(names, size, max(least, 0 if base else segment.room), (base, count), busy)
        if found.base_columns + found.columns < least:
            wanted = max(least, 0 if found.base else segment.room) - found.base_columns
            found.widen(self._manifest, _in_steps(wanted), len(names) * size - found.base_columns)
            self.widened += 1
        return found

    def _own(self, names: list[PageName], size: int, busy: list[SequenceCache[Bound]]) -> SequenceCache[Bound] | None:
        """The cache that ends with exactly these pages, if its end is nobody else's to write."""
        cache, index = self._homes.get(names[-1], (None, 0)) if names else (None, 0)
        if cache is None or cache.is_base or cache.base_columns + (index + 1) * size != len(names) * size:
            return None
        is_same = cache.is_of(names, size) and cache.is_free_from(index + 1)
        return cache if is_same and all(other is not cache for other in busy) else None

    def _new(
        self,
        names: list[PageName],
        size: int,
        columns: int,
        base: tuple["SequenceCache[Bound] | None", int],
        busy: list[SequenceCache[Bound]],
    ) -> SequenceCache[Bound]:
        """A cache of `columns` columns, the base's counted: the names behind the pages of the base are copied.

        What only the sequence itself has written, before its first pages became a base, moves.
        """
        found, count = base
        made = SequenceCache(self._manifest, _in_steps(columns - count * size), found, count * size)
        self._copy(names[count:], made, size)
        old, index = self._homes.get(names[-1], (None, 0)) if found else (None, 0)
        if old and not old.is_base and old.is_free_from(index + 1) and all(other is not old for other in busy):
            for place, name in enumerate(names[count:]):
                if self._homes[name][0] is old:
                    self._settle(made, place, name)
        return made

    def _base_for(
        self, names: list[PageName], size: int, busy: list[SequenceCache[Bound]]
    ) -> tuple[SequenceCache[Bound] | None, int]:
        """What a sequence with these full pages should stand on, and with how many of them; None and 0 to copy all."""
        if self._least_shared is None:
            return None, 0
        base, count = self._longest_base(names, size)
        known = sum(1 for _ in takewhile(self._homes.__contains__, names))
        is_long = (known - count) * size >= max(self._least_shared, count * size)
        if is_long and self._has_readers(self._homes[names[known - 1]][0], busy):
            return self._make_base(names[:known], size, busy), known
        return (base, count) if count * size >= self._least_shared else (None, 0)

    def _has_readers(self, cache: SequenceCache[Bound], busy: list[SequenceCache[Bound]]) -> bool:
        """Whether a newcomer is not the only one that reads the cache: alone it is faster with a copy of its own."""
        others = [*busy, *(self._last[1] if self._last else ())]
        has_readers = cache.is_base or cache.is_lent or any(other is cache for other in others)
        cache.is_lent = True
        return has_readers

    def _longest_base(self, names: list[PageName], size: int) -> tuple[SequenceCache[Bound] | None, int]:
        """The base with the most of these pages. Not one of which they would be less than half: all of it is read."""
        for count in range(len(names), 0, -1):
            cache, index = self._homes.get(names[count - 1], (None, 0))
            if cache is None or not cache.is_base or index != count - 1 or cache.columns > 2 * count * size:
                continue
            if cache.is_of(names[:count], size):
                return cache, count
        return None, 0

    def _make_base(self, names: list[PageName], size: int, busy: list[SequenceCache[Bound]]) -> SequenceCache[Bound]:
        """Make these pages a base, and let the cache that they end in go on upon it, unless the pass has it already."""
        base: SequenceCache[Bound] = SequenceCache(self._manifest, len(names) * size)
        base.is_base = True
        self._copy(names, base, size)
        old, index = self._homes[names[-1]]
        rest = old.pages[index + 1 :] if old.is_of(names, size) and not old.is_base else []
        for place, name in enumerate(names):
            home, there = self._homes[name]
            if not home.is_base or home.columns > base.columns:
                self._settle(base, place, name)
            if home.is_base:
                home.put(there, name)  # what stands on that base still sees it there
        tail = [name for name in rest[: rest.index(None) if None in rest else None] if name is not None]
        if tail and all(other is not old for other in busy):
            columns = (len(names) + len(tail)) * size
            self._new([*names, *tail], size, columns, (base, len(names)), busy)
        return base

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


def _in_steps(columns: int) -> int:
    return -(-columns // COLUMN_STEP) * COLUMN_STEP
