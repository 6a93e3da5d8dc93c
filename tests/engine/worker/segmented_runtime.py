"""The fake runtime with a cache for each sequence: what a row sees is read from there, column by column."""

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest, TextSpec
from engine.bundle.model_spec import LayerAttention, ModelSpec, RopeSpec
from engine.bundle.variant import ShapeTable
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.kv import SequenceCaches
from engine.runtime.kv_memory import SequenceCache
from tests.engine.fake_runtime import FakeRuntime


def smallest_manifest(window: int = 0) -> Manifest:
    """One layer, one head of one number: a key remembers a position, a value a token. window: of a second layer."""
    rope = RopeSpec("default", 1e4, 2, (1.0,))
    model = ModelSpec("none", 1, 1, 1, 1, 1, 1, 50, rope)
    if window:
        model = msgspec.structs.replace(model, layers=2, attention=(LayerAttention(), LayerAttention(window)))
    text = TextSpec("tokenizer.json", None, ())
    return Manifest(1, "none", "cpu", "fp32", "none", 0, model, (), "int64", 10**6, text, {}, {})


class SegmentedFake(FakeRuntime):
    """`blocks` moves between caches as real keys and values do; rows that are not kept are written all the same."""

    def __init__(self, shapes: ShapeTable, columns: int, vocab: int = 50) -> None:
        super().__init__(shapes, columns, vocab)
        self.window = 0
        self.caches: SequenceCaches[None] = SequenceCaches(smallest_manifest(), None if shapes.fixed else 16)
        self.blocks = self.caches

    def open_caches(self, window: int) -> None:
        """Caches of a model that has a second layer, with a window."""
        self.window, self.caches = window, SequenceCaches(smallest_manifest(window))
        self.blocks = self.caches

    def seen(self, batch: PackedBatch) -> Callable[[int], NDArray[np.int64]]:
        """Writes the new rows behind the past of each sequence, then reads what each may see of them."""
        self.caches.place(batch)
        found: dict[int, NDArray[np.int64]] = {}
        for segment, cache in self.caches.last:
            new = cache.new_columns(segment)
            cache.keys[0, 0, 0, new, 0] = batch.positions[segment.start : segment.end]
            cache.values[0, 0, 0, new, 0] = batch.input_ids[segment.start : segment.end]
            for part, there in cache.written(segment)[1:]:
                part.keys[0, 0, 0, there, 0] = cache.keys[0, 0, 0, new, 0]
                part.values[0, 0, 0, there, 0] = cache.values[0, 0, 0, new, 0]
                self.check_window(cache, segment)
        for segment, cache in self.caches.last:
            for row in range(segment.start, segment.end):
                end = segment.past + int(segment.visible_rows()[row - segment.start].sum())
                parts = [(cache, end - cache.base_columns)]
                parts[:0] = [(cache.base, cache.base_columns)] if cache.base else []
                read = [
                    np.stack([part.keys[0, 0, 0, :count, 0], part.values[0, 0, 0, :count, 0]]) for part, count in parts
                ]
                found[row] = np.concatenate(read, axis=1).T
        return lambda row: found[row]

    def check_window(self, cache: SequenceCache[None], segment: PackedSegment) -> None:
        """The layer with a window has what the other one has, as far as its rows see."""
        first = max(0, segment.past - self.window + 1)
        seen = slice(first - cache.start, segment.past + segment.count - cache.start)
        own, full = cache.behind[0], slice(first, segment.past + segment.count)
        assert seen.start >= 0 and seen.stop <= cache.behind_columns
        np.testing.assert_array_equal(own.keys[0, 0, 0, seen, 0], cache.keys[0, 0, 0, full, 0])
        np.testing.assert_array_equal(own.values[0, 0, 0, seen, 0], cache.values[0, 0, 0, full, 0])

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        self.caches.keep(rows.tolist(), columns.tolist())
