"""Keys and values of one sequence: memory for each group of layers, of which those with a window hold the end alone.
Legend: L = layers of a group, K = KV heads, T = columns of a cache, D = head size."""

import math
import mmap
import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np

from engine.bundle.manifest import Manifest
from engine.bundle.model_spec import CacheGroup
from engine.bundle.segments import FLOAT, HALF
from engine.bundle.tensors import Array
from engine.runtime.half_floats import assign
from engine.runtime.interface import PackedSegment

COLUMN_STEP = 64
SLIDE_SHARE = 4  # of a window: columns that come before its memory is used from the front again
KEPT_PLACES = 4  # rows of a step that a cache stays bound to: decodes mostly stay where they are
EXACT = "fp32"  # `quant` of bundles in which nothing is rounded
BlockName = int  # its number in the pool
Bound = TypeVar("Bound")


def in_steps(columns: int) -> int:
    return -(-columns // COLUMN_STEP) * COLUMN_STEP


LARGE = 1 << 20


def _array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Of any content. A large one has pages of its own: caches of many sizes leave gaps in glibc's heap. Small pages
    are made when a step first writes them, huge ones all in the first step of a sequence."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE or sys.platform != "linux":
        return np.empty(shape, dtype)
    return np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype).reshape(shape)


def _narrowed(side: Array, columns: int) -> Array:
    """float16 of the first columns of [L, 1, K, T, D], in the front of its memory if it has pages of its own."""
    layers, one, heads, _, size = side.shape
    shape, numbers = (layers, one, heads, columns, size), layers * heads * columns * size
    pages = _pages_of(side)
    narrow = np.empty(shape, HALF) if pages is None else side.reshape(-1).view(HALF)[:numbers].reshape(shape)
    assign(narrow, side[..., :columns, :])
    if pages is not None and (left := -(-narrow.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE) < len(pages):
        pages.madvise(mmap.MADV_DONTNEED, left)
    return narrow


def _pages_of(side: Array) -> mmap.mmap | None:
    """What an array that `_array` made lies in."""
    owner: object = side
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return owner if isinstance(owner, mmap.mmap) else None


class GroupColumns:
    """Keys and values [L, 1, K, T, D] of a group of layers."""

    def __init__(self, group: CacheGroup, dtype: str, columns: int) -> None:
        shape = (len(group.layers), 1, group.kv_heads, columns, group.head_dim)
        self.keys = _array(shape, np.dtype(dtype))
        self.values = _array(shape, np.dtype(dtype))

    def take(self, other: "GroupColumns", mine: slice, theirs: slice) -> None:
        assign(self.keys[..., mine, :], other.keys[..., theirs, :])
        assign(self.values[..., mine, :], other.values[..., theirs, :])

    def clear(self, columns: slice) -> None:
        self.keys[..., columns, :] = 0
        self.values[..., columns, :] = 0

    def narrow(self, columns: int) -> None:
        """Keep the first `columns` as float16, where they lie: pages of new memory take longer than that."""
        self.keys, self.values = (_narrowed(side, columns) for side in (self.keys, self.values))


class CacheForm:
    """What memory a bundle's sequences need. is_uniform: all bits stay as they were, and where they were: layers with
    a window give nothing back, and no cache rests as float16. Nor where nothing else is rounded."""

    def __init__(self, manifest: Manifest, is_uniform: bool) -> None:
        self.dtype = manifest.kv_dtype
        self.rests = manifest.kv_dtype == FLOAT and manifest.quant != EXACT and not is_uniform
        groups = manifest.model.cache_groups
        self.window = 0 if is_uniform else max((group.window for group in groups), default=0)
        self.full = tuple(group for group in groups if not (self.window and group.window))
        self.behind = tuple(group for group in groups if self.window and group.window)
        self.layers = {layer: (group, index) for group in groups for index, layer in enumerate(group.layers)}

    def memory(self, groups: tuple[CacheGroup, ...], columns: int) -> tuple[GroupColumns, ...]:
        return tuple(GroupColumns(group, self.dtype, columns) for group in groups)

    def first_seen(self, past: int, unit: int) -> int:
        """The first column that the row behind so many sees under a window, a multiple of `unit`."""
        return max(0, past - self.window + 1) // unit * unit

    def behind_columns(self, needed: int, room: int, rows: int) -> int:
        """Columns of memory for layers with a window. needed: those that a step of `rows` rows uses; room: what the
        sequence is going to need as far as can be foreseen."""
        if not self.window:
            return 0
        slack = max(COLUMN_STEP, self.window // SLIDE_SHARE)
        return in_steps(max(needed, min(room, self.window + rows + slack)))


class SequenceCache(Generic[Bound]):
    """Keys and values of one sequence, or of a finished one whose blocks may still be wanted.
    blocks: what lies in each block's columns, None where nothing does that could be asked for. owned: those of them
    that others must find here, by their index. bound: what a runtime has bound to this memory, dropped when it moves.
    base: where the sequence's first `base_columns` columns lie; memory here begins with the column behind them. start:
    the first column that layers with a window have here."""

    def __init__(
        self, form: CacheForm, columns: int, base: "SequenceCache[Bound] | None" = None, base_columns: int = 0
    ) -> None:
        self.form = form
        self.full = form.memory(form.full, columns)
        self.behind = form.memory(form.behind, 0)
        self.start = 0
        self.columns = columns  # that there is memory for, but in layers with a window
        self.behind_columns = 0  # the same in those
        self.blocks: list[BlockName | None] = []
        self.owned: dict[int, BlockName] = {}
        self.bound: dict[tuple[int, ...], Bound] = {}
        self.base = base
        self.base_columns = base_columns
        self.is_base = False
        self.is_resting = False  # float16 now, which can be copied from but not computed with
        self.was_copied = False  # whether blocks of it have been copied
        self.has_ended = False  # whether its sequence has given blocks back since it was last in a step
        self._of_layer: dict[int, tuple[Array, Array, bool]] = {}  # until the memory moves
        self._unclean = columns

    def sides(self) -> tuple[Array, ...]:
        """Keys of each group, then their values, but of layers with a window."""
        return (*(part.keys for part in self.full), *(part.values for part in self.full))

    @property
    def keys(self) -> Array:
        """[L, 1, K, T, D] where all layers are alike."""
        return self.full[0].keys

    @property
    def values(self) -> Array:
        """[L, 1, K, T, D] where all layers are alike."""
        return self.full[0].values

    def layer(self, layer: int) -> tuple[Array, Array, bool]:
        """Keys and values [1, K, T, D] of one layer, and whether they begin with column `start`."""
        if not self._of_layer:
            self._of_layer = {each: self._found(*place) for each, place in self.form.layers.items()}
        return self._of_layer[layer]

    def _found(self, group: CacheGroup, index: int) -> tuple[Array, Array, bool]:
        slides = group in self.form.behind
        part = self.behind[self.form.behind.index(group)] if slides else self.full[self.form.full.index(group)]
        return part.keys[index], part.values[index], slides

    def span(self, slides: bool) -> tuple[int, int]:
        """The first column that such layers have here, and how many there is memory for."""
        return (self.start, self.behind_columns) if slides else (self.base_columns, self.columns)

    def new_columns(self, segment: PackedSegment) -> slice:
        """Where in this memory the keys and values of the segment's rows go."""
        start = segment.past - self.base_columns
        return slice(start, start + segment.count)

    def written(self, segment: PackedSegment) -> list[tuple[GroupColumns, slice]]:
        """All memory, with where the keys and values of the segment's rows go in it."""
        start, new = segment.past - self.start, self.new_columns(segment)
        behind = slice(start, start + segment.count)
        return [*((part, new) for part in self.full), *((part, behind) for part in self.behind)]

    def is_of(self, names: list[BlockName], block_size: int) -> bool:
        """Whether exactly these blocks are what a sequence that goes on here would see first."""
        before = self.base.blocks[: self.base_columns // block_size] if self.base else []
        return [*before, *self.blocks][: len(names)] == names

    def clean_behind(self, end: int) -> None:
        """Make what lies behind the first `end` columns zeros: under a mask it still counts as 0 times its value."""
        for part in self.full:
            part.clear(slice(end, self._unclean))
        for part in self.behind:
            part.clear(slice(end - self.start, self.behind_columns))
        self._unclean = end

    def bound_at(self, place: tuple[int, ...], make: Callable[[tuple[int, ...]], Bound]) -> Bound:
        """What is bound to this memory for one place among the rows of a step, from an earlier step or made now."""
        found = self.bound.pop(place, None) or make(place)
        self.bound[place] = found
        if len(self.bound) > KEPT_PLACES:
            del self.bound[next(iter(self.bound))]
        return found

    def expect_writes(self, end: int) -> None:
        """A step may leave anything in the columns before `end`."""
        self._unclean = max(self._unclean, end)

    def is_free_from(self, index: int) -> bool:
        """Whether nobody would miss what lies in the blocks from `index` on."""
        return max(self.owned, default=-1) < index

    def put(self, index: int, block: BlockName | None) -> None:
        self.blocks.extend([None] * (index + 1 - len(self.blocks)))
        self.blocks[index] = block

    def take_columns(self, other: "SequenceCache[Bound]", mine: slice, theirs: slice) -> None:
        """Copy columns of another cache, but in layers with a window."""
        for part, given in zip(self.full, other.full, strict=True):
            part.take(given, mine, theirs)

    def rest(self, used: int) -> None:
        """Keep the first `used` columns alone, as float16 if it can hold them."""
        limit = np.finfo(HALF).max
        sides = [side[..., :used, :] for side in self.sides()]
        if not all(-limit <= side.min() and side.max() <= limit for side in sides):
            self.resize(used, used)
            return
        for part in self.full:
            part.narrow(used)
        self.columns, self._unclean, self.is_resting = used, used, True
        self._unbind()

    def resize(self, columns: int, used: int) -> None:
        """Move to memory of `columns` columns, of which the first `used` are copied."""
        wider = self.form.memory(self.form.full, columns)
        for part, old in zip(wider, self.full, strict=True):
            part.take(old, slice(used), slice(used))
        self.full, self.columns, self._unclean = wider, columns, columns
        self.is_resting = False
        self._unbind()

    def slide(self, start: int, end: int, columns: int) -> None:
        """Let layers with a window begin with column `start`, up to `end` as they are; in memory of `columns`."""
        kept, old, memory = slice(end - start), slice(start - self.start, end - self.start), self.behind
        if columns != self.behind_columns:
            memory = self.form.memory(self.form.behind, columns)
            self._unbind()
        for part, before in zip(memory, self.behind, strict=True):
            part.take(before, kept, old)
        self.behind, self.start, self.behind_columns = memory, start, columns

    def _unbind(self) -> None:
        self.bound.clear()
        self._of_layer.clear()
