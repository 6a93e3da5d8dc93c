"""Attention under a mask: over a base that several sequences share, under a window, and of rows that see both ways.
Legend: L = layers with keys and values, N = rows, M = those of them that are computed here, K = KV heads, G = query
heads on each, D = head size."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.segments import BASE_ATTENTION, MASKED_ATTENTION
from engine.bundle.tensors import Array
from engine.runtime.attention import EVERYTHING, HIDDEN, SCALES, AttentionWindow, BoundAttention, Cache
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.linear import Floats, RowBuffers
from engine.runtime.onnx_library import ort
from engine.runtime.sessions import bind_all

# L = layers, M = rows, K = KV heads, D = head size
LOWEST, HIGHEST = np.float32(-128), np.float32(127)


class FreshCodes:
    """Rounds as the attention operator does: times the inverse scale, to the nearest even, clamped.
    scales: [L, 2, K, D]. What comes out is valid until the next call."""

    def __init__(self, scales: NDArray[np.float32], most_rows: int) -> None:
        self._inverse = np.float32(1) / scales  # the operator's own float32 inverse: a division would round otherwise
        shape = (most_rows, *scales.shape[2:])
        self._numbers, self._codes = np.empty(shape, np.float32), np.empty(shape, np.int8)

    def of(self, layer: int, side: int, rows: NDArray[np.float32], indices: NDArray[np.int64]) -> Array:
        """int8 [M, K, D] of those rows. side: 0 = keys, 1 = values. Rows that are not finite give any codes."""
        numbers, codes = self._numbers[: len(indices)], self._codes[: len(indices)]
        np.take(rows, indices, axis=0, out=numbers, mode="clip")
        np.multiply(numbers, self._inverse[layer, side], out=numbers)
        np.rint(numbers, out=numbers)
        np.clip(numbers, LOWEST, HIGHEST, out=numbers)
        codes[...] = numbers
        return codes


MOST_ROWS = 64  # of a run: scores take rows * heads * columns numbers, several times over


@dataclass(slots=True)
class Placed:
    """A segment, its cache, and where its rows begin among the M."""

    segment: PackedSegment
    cache: Cache
    start: int


@dataclass(slots=True)
class MaskedWork:
    """What one step computes here. indices: int64 [M], the row of the step that each of the M rows is."""

    indices: NDArray[np.int64]
    placed: list[Placed] = field(default_factory=list)
    bases: list[BoundAttention] = field(default_factory=list)
    own: list[BoundAttention] = field(default_factory=list)


class MaskedAttention:
    """Two graphs and the rows between them: queries in one stretch for each base, and what the bases gave for them.
    The M rows lie at the end of their memory, so that decodes keep their place while prompt rows before them vary.
    scales: [L, 2, K, D] of int8 caches, None with float ones. window: of layers without one of their own; where some
    have one there are no bases."""

    def __init__(
        self,
        manifest: Manifest,
        sessions: Mapping[str, ort.InferenceSession],
        rows: RowBuffers,
        scales: NDArray[np.float32] | None = None,
        window: AttentionWindow = EVERYTHING,
    ) -> None:
        model = manifest.model
        self._heads = (model.kv_heads, model.heads // model.kv_heads)
        self._size = model.head_dim
        self._base, self._masked = sessions.get(BASE_ATTENTION), sessions[MASKED_ATTENTION]
        self._rows = rows
        self._window_of = [AttentionWindow(own) if own else window for own in model.layer_windows]
        self._windows = list(dict.fromkeys(self._window_of))  # a mask for each
        wide = (rows.most, *self._heads, self._size)
        self._query, self._attended = np.zeros(wide, np.float32), np.zeros(wide, np.float32)
        self._weight = np.zeros((*wide[:-1], 1), np.float32)
        self._codes = None if scales is None else FreshCodes(scales, rows.most)
        self._scales: list[dict[str, Array]] = [{} for _ in model.attention_layers]
        if scales is not None:
            self._scales = [dict(zip(SCALES, sides, strict=True)) for sides in scales[:, :, None, :, None, :]]

    def prepare(self, batch: PackedBatch, items: list[tuple[PackedSegment, Cache]]) -> MaskedWork:
        """Bind the segments to their caches, and those of one base together."""
        groups: dict[int, list[tuple[PackedSegment, Cache]]] = {}
        for segment, cache in items:
            groups.setdefault(id(cache.base), []).append((segment, cache))
        rows = [np.arange(segment.start, segment.end) for group in groups.values() for segment, _ in group]
        work = MaskedWork(np.concatenate(rows))
        start = 0
        for group in groups.values():
            first = start
            for segment, cache in group:
                work.placed.append(Placed(segment, cache, start))
                start += segment.count
            self._prepare_base(work, group[0][1].base, first, start)
        for placed in work.placed:
            self._prepare_own(work, placed, batch.shape.rows)
        return work

    def run(self, work: MaskedWork, layer: int, rows: int) -> None:
        """Attention of one layer in a step of N rows: fresh keys and values go to the caches, too."""
        count = len(work.indices)
        queries = self._rows.rows("query", rows).reshape(rows, *self._heads, self._size)
        np.take(queries, work.indices, axis=0, out=self._query[-count:], mode="clip")
        self._write_fresh(work, layer, rows)
        for bound in (*work.bases, *work.own):
            bound.layers[layer].run()

    def _write_fresh(self, work: MaskedWork, layer: int, rows: int) -> None:
        shape = (rows, self._heads[0], self._size)
        for side, name in enumerate(("key", "value")):
            computed = self._rows.rows(name, rows).reshape(shape)
            fresh = self._codes.of(layer, side, computed, work.indices) if self._codes else computed
            for placed in work.placed:
                cache, segment = placed.cache, placed.segment
                start = placed.start if self._codes else segment.start
                *sides, slides = cache.layer(layer)
                column = segment.past - cache.span(slides)[0]
                target = sides[side][0, :, column : column + segment.count]
                target[...] = fresh[start : start + segment.count].swapaxes(0, 1)

    def _prepare_base(self, work: MaskedWork, base: Cache | None, start: int, end: int) -> None:
        """Rows `start` to `end` of the M see their first columns in `base`; without one they see nothing there."""
        count = len(work.indices)
        if base is None:
            for array, nothing in ((self._weight, HIDDEN), (self._attended, 0)):
                _end(array, count - start, end - start)[...] = nothing
            return
        lengths = np.zeros(count, np.int64)
        for placed in work.placed:
            lengths[placed.start : placed.start + placed.segment.count] = placed.cache.base_columns
        for first, last in _runs(start, end):
            bound = base.bound_at((count - first, last - first), partial(self._bind_base, base))
            _show(bound.told[0], np.arange(base.columns) < lengths[first:last, None])
            work.bases.append(bound)

    def _prepare_own(self, work: MaskedWork, placed: Placed, rows: int) -> None:
        segment, cache = placed.segment, placed.cache
        cache.clean_behind(cache.new_columns(segment).stop)
        visible = [_visible(segment, window, *self._span(cache, window)) for window in self._windows]
        for first, last in _runs(0, segment.count):
            from_end = len(work.indices) - placed.start - first
            place = (rows - segment.start - first, last - first, from_end)
            bound = cache.bound_at(place, partial(self._bind_own, cache))
            for mask, shown in zip(bound.told, visible, strict=True):
                _show(mask, shown[first:last])
            work.own.append(bound)

    def _span(self, cache: Cache, window: AttentionWindow) -> tuple[int, int]:
        """As `SequenceCache.span`, of layers with that window."""
        return cache.span(cache.layer(self._window_of.index(window))[2])

    def _bind_base(self, base: Cache, place: tuple[int, ...]) -> BoundAttention:
        mask = np.zeros((place[1], 1, base.columns), np.float32)
        query, attended, weight = (_end(array, *place) for array in (self._query, self._attended, self._weight))
        outputs = {"base_attended": attended, "base_weight": weight}
        assert self._base is not None  # else no cache has a base
        inputs: dict[str, Array] = {"query": query, "mask": mask}
        layers = [
            bind_all(BASE_ATTENTION, self._base, inputs | {"keys": keys, "values": values, **scales}, outputs)
            for keys, values, scales in zip(base.keys, base.values, self._scales, strict=True)
        ]
        return BoundAttention(layers, (mask,))

    def _bind_own(self, cache: Cache, place: tuple[int, ...]) -> BoundAttention:
        from_end, count, base_from_end = place
        spans = (self._span(cache, window) for window in self._windows)
        masks = tuple(np.zeros((count, columns), np.float32) for _, columns in spans)
        shape = (count, *self._heads, self._size)
        inputs: dict[str, Array] = {"query": self._rows.some("query", from_end, count).reshape(shape)}
        for name, array in (("base_attended", self._attended), ("base_weight", self._weight)):
            inputs[name] = _end(array, base_from_end, count)
        outputs = {"attended": self._rows.some("attended", from_end, count).reshape(shape)}
        layers = []
        for layer, window in enumerate(self._window_of):
            keys, values, _ = cache.layer(layer)
            own: dict[str, Array] = {"keys": keys.swapaxes(0, 1), "values": values.swapaxes(0, 1)}
            own |= {"mask": masks[self._windows.index(window)], **self._scales[layer]}
            layers.append(bind_all(MASKED_ATTENTION, self._masked, inputs | own, outputs))
        return BoundAttention(layers, masks)


def _visible(segment: PackedSegment, window: AttentionWindow, start: int, columns: int) -> NDArray[np.bool_]:
    """Which columns from `start` on each row of a segment sees, bool [rows, columns]."""
    past = segment.past - start
    visible = np.zeros((segment.count, columns), np.bool_)
    visible[:, :past] = True
    visible[:, past : past + segment.count] = segment.visible_rows()
    if window.recent:
        rows = np.arange(segment.past, segment.past + segment.count)
        visible &= window.visible(rows, np.arange(start, start + columns))
    return visible


def _runs(start: int, end: int) -> list[tuple[int, int]]:
    return [(first, min(first + MOST_ROWS, end)) for first in range(start, end, MOST_ROWS)]


def _end(array: Floats, from_end: int, count: int) -> Floats:
    start = len(array) - from_end
    return array[start : start + count]


def _show(mask: Array, visible: NDArray[np.bool_]) -> None:
    mask.reshape(visible.shape)[...] = np.where(visible, np.float32(0), HIDDEN)
