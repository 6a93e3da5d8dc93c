"""Keys and values of sequences, each in one stretch of memory of its own, and which block of the pool lies where.

The scheduler counts in blocks of a pool. Here a block is a name: the blocks of a sequence lie side by side in the cache
that the sequence computes into. A newcomer takes over a cache whose end nobody else needs. Otherwise a long run of
shared blocks becomes a base: a cache that nobody writes, which any number of others read and hold only what comes
behind it. Blocks of shorter runs are copied.

So each shared block takes memory once. The exceptions: copies of short runs, and those of a sequence that goes far
beyond what it shares; the units that caches grow in; a last block that keeps its whole cache; and a base that is still
read while a longer or shorter one has parts of it.

Layers with a window have memory of their own there: for the columns that the next rows see, and those of a few steps.
Blocks behind it that others may ask for become copies. Such caches are no bases.

Legend: L = layers with keys and values, K = KV heads, D = head size.
"""

from collections.abc import Collection, Sequence
from itertools import takewhile
from typing import Generic

import numpy as np

from engine.bundle.manifest import Manifest
from engine.runtime.interface import BlockStore, PackedBatch, PackedSegment
from engine.runtime.kv_memory import COLUMN_STEP, BlockName, Bound, CacheForm, GroupColumns, SequenceCache, in_steps

# How many times as long as its base a sequence may be. What lies behind it is read under a mask: rows of a prompt take
# twice the time there; four decodes over 1,024 columns and 2,048 of their own take as long as with copies.
MOST_TIMES = 3
LEAST_SPARE = 32  # columns
MOST_COPIED = 256 << 20  # bytes in a step: to make float16 of them takes 45 ms


class SequenceCaches(BlockStore, Generic[Bound]):
    """Sole owner of the caches, of what the last step was, and of the copies that were offloaded.
    A cache lives as long as it owns a block, the last step wrote it, or another such cache stands on it. A step writes
    behind the columns that its sequences have: what is not kept is overwritten by the next one. least_shared: a base
    has so many columns at least; None = shared blocks are always copied. is_uniform: see CacheForm."""

    def __init__(self, manifest: Manifest, least_shared: int | None = None, is_uniform: bool = False) -> None:
        self._form = CacheForm(manifest, is_uniform)
        self._least_shared = None if self._form.window else least_shared
        self._owners: dict[BlockName, tuple[SequenceCache[Bound], int]] = {}
        # Of layers with a window: what has left the cache of its block, and of which blocks nothing is wanted.
        self._pieces: dict[BlockName, tuple[GroupColumns, ...]] = {}
        self._unwanted: set[BlockName] = set()
        self._offloaded: dict[bytes, SequenceCache[Bound]] = {}
        # Of the step at hand: columns of a block, segments and their caches; the caches of the step before; and those
        # that are still to be set aside.
        self._size = 1
        self._segments: tuple[PackedSegment, ...] = ()
        self._taken: list[SequenceCache[Bound]] = []
        self._before: list[SequenceCache[Bound]] = []
        self._late: list[SequenceCache[Bound]] = []
        self.widened = 0

    def place(self, batch: PackedBatch, least_rows: int = 1) -> list[SequenceCache[Bound]]:
        """For each segment a cache with its past in order and room behind it for its rows, or `least_rows` of them."""
        self._size, self._segments = batch.block_size, batch.segments
        self._before, self._taken = self._taken, []
        for segment in batch.segments:
            names = list(segment.blocks[: -(-segment.past // self._size)])
            least = segment.past + max(segment.count, least_rows)
            found = self._own(names, segment.past)
            if found is not None and found.base and not self._is_worth(found.base_columns, segment.room):
                found = self._apart(found, names, max(least, segment.room))
            if found is None:
                base, count = self._base_for(names[: segment.past // self._size], segment.room)
                # Behind a base nothing is reserved: every column there is computed with.
                found = self._new(names, max(least, 0 if base else segment.room), base, count, segment)
            elif found.is_resting or found.base_columns + found.columns < least:
                self._widen(found, names, max(least, 0 if found.base else segment.room))
            self._make_room_behind(found, segment, least)
            found.expect_writes(least - found.base_columns)
            found.has_ended = False
            self._taken.append(found)
        self._let_go([cache for cache in (*self._late, *self._before) if not self._is_taken(cache)])
        self._before = []
        return list(self._taken)

    @property
    def last(self) -> list[tuple[PackedSegment, SequenceCache[Bound]]]:
        return list(zip(self._segments, self._taken, strict=True))

    def keep(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        """Let what `rows` of the last step have written count, as what lies in the blocks of `columns`."""
        column_of = dict(zip(rows, columns, strict=True))
        for segment, cache in self.last:
            for row in range(segment.start, segment.end):
                if row in column_of:
                    index = (segment.past - cache.base_columns + row - segment.start) // self._size
                    self._assign(cache, index, column_of[row] // self._size)

    def free(self, blocks: Collection[int]) -> None:
        """Nobody wants these blocks; a cache that owns none is freed. One of a finished sequence is shortened later."""
        for block in blocks:
            cache, _ = self._owner(block)
            self._leave(block)
            if cache is not None:
                cache.has_ended = True

    def free_behind(self, blocks: Collection[int]) -> None:
        """Nobody wants these blocks in layers with a window; memory that only they lie in is given back."""
        for name in blocks:
            self._pieces.pop(name, None)
            cache, _ = self._owner(name)
            if cache is not None:
                self._unwanted.add(name)
                if cache.behind_columns and not self._is_taken(cache) and not self._has_window(cache):
                    cache.slide(cache.start, cache.start, 0)

    def offload(self, columns: slice, key: bytes) -> None:
        """Copy the columns of one block to a cache of their own. KeyError when the block was never written."""
        size = columns.stop - columns.start
        source, index = self._owners[columns.start // size]
        copy = self._offloaded[key] = SequenceCache(self._form, size)
        copy.take_columns(source, slice(size), slice(index * size, (index + 1) * size))

    def load(self, columns: slice, key: bytes) -> None:
        size = columns.stop - columns.start
        copy: SequenceCache[Bound] = SequenceCache(self._form, size)
        copy.take_columns(self._offloaded[key], slice(size), slice(size))
        self._assign(copy, 0, columns.start // size)

    def offloaded(self, key: bytes) -> bytes:
        """The copy of a block: keys [L, 1, K, 16, D], then values of the same shape."""
        return b"".join(side.tobytes() for side in self._offloaded[key].sides())

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        flat = np.frombuffer(content, np.dtype(self._form.dtype))
        columns = len(flat) // sum(group.numbers for group in self._form.full)  # numbers of a token
        copy = self._offloaded[key] = SequenceCache(self._form, columns)
        sides = copy.sides()
        for side, part in zip(sides, np.split(flat, np.cumsum([side.size for side in sides[:-1]])), strict=True):
            side[...] = part.reshape(side.shape)

    def evict(self, key: bytes) -> None:
        self._offloaded.pop(key, None)

    def clear(self) -> None:
        self._segments, self._taken, self._before, self._late = (), [], [], []
        self._owners.clear()
        self._offloaded.clear()
        self._pieces.clear()

    def _own(self, names: list[BlockName], past: int) -> SequenceCache[Bound] | None:
        """The cache that ends with exactly these blocks, if its end is nobody else's to write."""
        cache, index = self._owner(names[-1]) if names else (None, 0)
        if cache is None or cache.is_base or cache.base_columns + (index + 1) * self._size != len(names) * self._size:
            return None
        is_free = cache.is_of(names, self._size) and cache.is_free_from(index + 1) and self._reaches(cache, past)
        return cache if is_free and not self._is_taken(cache) else None

    def _new(
        self,
        names: list[BlockName],
        columns: int,
        base: SequenceCache[Bound] | None,
        count: int,
        segment: PackedSegment | None = None,
    ) -> SequenceCache[Bound]:
        """A cache of `columns` columns, those of the base's first `count` blocks among them; the others are copied.
        What only the sequence itself has written, before its first blocks became a base, moves along."""
        made = SequenceCache(self._form, in_steps(columns - count * self._size), base, count * self._size)
        self._copy(names[count:], made)
        if self._form.window and segment is not None:
            self._fill_behind(made, names, segment)
        old, index = self._owner(names[-1]) if base else (None, 0)
        if old and not old.is_base and old.is_free_from(index + 1) and not self._is_taken(old):
            for place, name in enumerate(names[count:]):
                if self._owners[name][0] is old:
                    self._assign(made, place, name)
        return made

    def _apart(self, cache: SequenceCache[Bound], names: list[BlockName], columns: int) -> SequenceCache[Bound]:
        """A cache with all columns side by side, for a sequence that has become long for its base."""
        made = self._new(names, columns, None, 0)
        for index, name in enumerate(names):
            if self._owners[name][0] is cache:
                self._assign(made, index, name)
        return made

    def _let_go(self, caches: Sequence[SequenceCache[Bound]]) -> None:
        """What finished sequences leave behind is many caches: bound to nothing, and set aside. The step of others
        waits for that, so it goes on in the next steps, and very large ones stay as they are."""
        self._late, left = [], MOST_COPIED
        for cache in caches:
            cache.bound.clear()
            size = sum(side.nbytes for side in cache.sides())
            if not cache.has_ended or not cache.owned or cache.is_base or size > MOST_COPIED:
                continue
            if size > left:
                self._late.append(cache)
                continue
            left -= size
            self._set_aside(cache)

    def _set_aside(self, cache: SequenceCache[Bound]) -> None:
        """Give back what a finished sequence has reserved and not used, and keep the rest as float16 where floats are
        computed with."""
        used = (max(cache.owned) + 1) * self._size
        if self._form.rests:
            cache.rest(used)
        elif cache.columns - used >= max(LEAST_SPARE, cache.columns // 16):
            cache.resize(used, used)

    def _widen(self, cache: SequenceCache[Bound], names: list[BlockName], columns: int) -> None:
        self.widened += not cache.is_resting
        cache.resize(in_steps(columns - cache.base_columns), len(names) * self._size - cache.base_columns)

    def _base_for(self, names: list[BlockName], room: int) -> tuple[SequenceCache[Bound] | None, int]:
        """What a sequence with these full blocks stands on, and with how many of them; None and 0 to copy all.
        A new base is made where the blocks that are known go at least twice as far as those of any base there is, and
        somebody else reads them. room: columns that the sequence is going to need."""
        if self._least_shared is None:
            return None, 0
        base, count = self._longest_base(names)
        known = sum(1 for _ in takewhile(self._owners.__contains__, names))
        is_long = (known - count) * self._size >= max(self._least_shared, count * self._size)
        has_readers = is_long and self._has_readers(self._owners[names[known - 1]][0])
        if has_readers and self._is_worth(known * self._size, room):
            return self._make_base(names[:known]), known
        if count * self._size >= self._least_shared and self._is_worth(count * self._size, room):
            return base, count
        return None, 0

    @staticmethod
    def _is_worth(shared: int, columns: int) -> bool:
        return columns <= MOST_TIMES * shared

    def _has_readers(self, cache: SequenceCache[Bound]) -> bool:
        """Whether a newcomer is not the only one that reads the cache: alone it is faster with a copy of its own."""
        was_copied, cache.was_copied = cache.was_copied, True
        return cache.is_base or was_copied or any(other is cache for other in (*self._taken, *self._before))

    def _longest_base(self, names: list[BlockName]) -> tuple[SequenceCache[Bound] | None, int]:
        """The base with the most of these blocks, at least half of it: all of a base is read."""
        for count in range(len(names), 0, -1):
            cache, index = self._owner(names[count - 1])
            if cache is None or not cache.is_base or index != count - 1 or cache.columns > 2 * count * self._size:
                continue
            if cache.is_of(names[:count], self._size):
                return cache, count
        return None, 0

    def _make_base(self, names: list[BlockName]) -> SequenceCache[Bound]:
        """A cache of these blocks that nobody writes any more, in three moves.
        The blocks are copied side by side. The base owns each from now on, unless a shorter base does. The cache that
        they were computed in then stands on the base, with what it has behind them, or stays as it is where that is
        long."""
        base: SequenceCache[Bound] = SequenceCache(self._form, len(names) * self._size)
        base.is_base = True
        self._copy(names, base)
        old, index = self._owners[names[-1]]
        behind = old.blocks[index + 1 :] if old.is_of(names, self._size) and not old.is_base else []
        tail = [name for name in takewhile(lambda name: name is not None, behind) if name is not None]
        is_far = not self._is_worth(len(names), len(names) + len(tail))
        for place, name in enumerate(names):
            owner, there = self._owners[name]
            if owner.is_base and owner.columns <= base.columns:
                continue
            self._assign(base, place, name)
            if owner.is_base or (is_far and owner is old):  # a sequence of that cache still reads the block there
                owner.put(there, name)
        if tail and not is_far and not self._is_taken(old):
            self._new([*names, *tail], (len(names) + len(tail)) * self._size, base, len(names))
        return base

    def _owner(self, name: BlockName) -> tuple[SequenceCache[Bound] | None, int]:
        """The cache that owns a block, and where it lies; (None, 0) for one that was never written."""
        return self._owners.get(name, (None, 0))

    def _is_taken(self, cache: SequenceCache[Bound]) -> bool:
        """Whether another segment of the step at hand writes it."""
        return any(other is cache for other in self._taken)

    def _copy(self, names: list[BlockName], target: SequenceCache[Bound]) -> None:
        """Put the blocks side by side; runs of them that lie so elsewhere are one copy. Unknown ones become zeros."""
        size, start = self._size, 0
        while start < len(names):
            cache, first = self._owner(names[start])
            end = start + 1
            while cache and end < len(names) and self._owners.get(names[end]) == (cache, first + end - start):
                end += 1
            mine = slice(start * size, end * size)
            if cache is None:
                for part in target.full:
                    part.clear(mine)
                self._assign(target, start, names[start])
            else:
                target.take_columns(cache, mine, slice(first * size, (first + end - start) * size))
            for index in range(start, end):
                target.put(index, names[index])
            start = end

    def _assign(self, cache: SequenceCache[Bound], index: int, name: BlockName) -> None:
        """From now on the block is what lies at `index` of the cache."""
        if cache.owned.get(index) == name:
            return
        self._leave(name)
        cache.put(index, name)
        cache.owned[index] = name
        self._owners[name] = (cache, index)

    def _leave(self, name: BlockName) -> None:
        cache, index = self._owners.pop(name, (None, 0))
        self._pieces.pop(name, None)
        self._unwanted.discard(name)
        if cache is not None:
            del cache.owned[index]
            cache.blocks[index] = None

    @property
    def _unit(self) -> int:
        return self._size if self._size <= COLUMN_STEP else 1

    def _reaches(self, cache: SequenceCache[Bound], past: int) -> bool:
        """Whether such layers have here what the row behind so many columns sees."""
        first = self._form.first_seen(past, self._unit)
        return not self._form.window or cache.start <= first < cache.start + cache.behind_columns

    def _make_room_behind(self, cache: SequenceCache[Bound], segment: PackedSegment, least: int) -> None:
        """Room in such layers for a step up to column `least`: memory is used from the front again, or is larger."""
        if not self._form.window or cache.start + cache.behind_columns >= least:
            return
        start = max(cache.start, self._form.first_seen(segment.past, self._unit))
        columns = self._form.behind_columns(least - start, segment.room - start, least - segment.past)
        self._set_apart(cache, start)
        cache.slide(start, segment.past, max(columns, cache.behind_columns))

    def _set_apart(self, cache: SequenceCache[Bound], start: int) -> None:
        """What others may ask for of the columns before `start` becomes copies."""
        for index, name in cache.owned.items():
            first, end = index * self._size, (index + 1) * self._size
            if cache.start <= first and end <= start and name not in self._unwanted:
                self._pieces[name] = self._form.memory(self._form.behind, self._size)
                for part, source in zip(self._pieces[name], cache.behind, strict=True):
                    part.take(source, slice(self._size), slice(first - cache.start, end - cache.start))

    def _has_window(self, cache: SequenceCache[Bound]) -> bool:
        """Whether somebody may ask for what such layers have here."""
        seen = (name for index, name in cache.owned.items() if index * self._size >= cache.start)
        return any(name not in self._unwanted for name in seen)

    def _fill_behind(self, made: SequenceCache[Bound], names: list[BlockName], segment: PackedSegment) -> None:
        """Such layers' memory for a newcomer, with what its rows see of its blocks; zeros for what is unknown."""
        made.start = start = self._form.first_seen(segment.past, self._unit)
        needed = segment.past + segment.count - start
        made.slide(start, start, self._form.behind_columns(needed, segment.room - start, segment.count))
        for index in range(start // self._size, len(names)):
            first = max(start, index * self._size)
            mine = slice(first - start, (index + 1) * self._size - start)
            for part, (source, theirs) in zip(made.behind, self._window_of(names[index], first, index), strict=True):
                if source is None:
                    part.clear(mine)
                else:
                    part.take(source, mine, theirs)

    def _window_of(self, name: BlockName, first: int, index: int) -> list[tuple[GroupColumns | None, slice]]:
        """Where columns `first` to the end of the block at `index` lie, in memory of each group; None for nowhere."""
        end = (index + 1) * self._size
        if name in self._pieces:
            return [(part, slice(first - index * self._size, self._size)) for part in self._pieces[name]]
        cache, _ = self._owner(name)
        if cache is None or not cache.start <= first < cache.start + cache.behind_columns:
            return [(None, slice(0))] * len(self._form.behind)
        return [(part, slice(first - cache.start, end - cache.start)) for part in cache.behind]
