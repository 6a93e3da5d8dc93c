"""Runs a segmented bundle: linear graphs over all rows, attention for each sequence over its own cache.

Legend: L = layers with keys and values, N = rows, R = those that need logits, K = KV heads, T = columns of a cache,
D = head size.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.adapters.adapter import Adapter
from engine.bundle.encoding import Encoding
from engine.bundle.kv_scales import ROUNDED, read_kv_scales
from engine.bundle.manifest import Manifest
from engine.bundle.segments import ATTENTION, BASE_ATTENTION
from engine.bundle.variant import PassShape, ShapeTable
from engine.errors import PassFailed
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.linear_chain import LinearChain, RowBuffers
from engine.graphs.logits import Logits
from engine.graphs.lora_rows import LoraRows
from engine.graphs.onnx_binding import Binding, bind
from engine.graphs.onnx_int8_attention import ChunkBinding, Int8Attention, NonFiniteRows
from engine.graphs.onnx_masked_attention import BoundAttention, Cache, MaskedAttention, MaskedWork
from engine.graphs.onnx_recurrent import open_recurrent
from engine.graphs.onnx_sessions import Provider, load_sessions
from engine.graphs.rotary import RotaryTable
from engine.graphs.row_places import RowPlaces
from engine.graphs.sequence_caches import SequenceCaches
from engine.graphs.stage_clock import StageClock

LEAST_SHARED = 128  # from here on 16 decodes upon one base take no longer than with copies


class SegmentRuntime:
    """Implements `Runtime` on the CPU. A cache belongs to a sequence; pages are names for what lies in it.

    Raises BundleError when a graph cannot be loaded.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        shapes: ShapeTable,
        provider: Provider,
        adapters: Sequence[Adapter] = (),
    ) -> None:
        self._manifest = manifest
        self._shapes = shapes
        self._device = provider.device
        sessions = load_sessions(folder, manifest, provider)
        self._attention = sessions[ATTENTION]
        # Sole owner of rows, chain and caches.
        self._rows = RowBuffers(manifest, shapes.max_rows)
        self._adapters = LoraRows(manifest, adapters, bool(shapes.fixed))
        self._chain = LinearChain(manifest, sessions, self._rows, self._adapters)
        scales = read_kv_scales(folder, manifest) if manifest.kv_dtype == ROUNDED else None
        # Bundles made earlier lack the graphs. One shape means the same bits, whether a column is shared or not.
        self._masked = MaskedAttention(manifest, sessions, self._rows, scales) if BASE_ATTENTION in sessions else None
        shares = self._masked is not None and not shapes.fixed
        self._places = RowPlaces()
        self._row_of: NDArray[np.int64] = np.zeros(0, np.int64)  # where the rows of the last pass were
        self._caches: SequenceCaches[BoundAttention] = SequenceCaches(manifest, LEAST_SHARED if shares else None)
        self._recurrent = open_recurrent(folder, manifest, sessions, self._rows)
        self._cache_of = {layer: index for index, layer in enumerate(manifest.model.attention_layers)}
        self._parts = StageClock()
        plain = Encoding("float32")
        self._rotary = {is_cos: RotaryTable(manifest.model.rope, is_cos, plain) for is_cos in (True, False)}
        # One shape for every pass means one way to compute: a lone row takes another, so it gets a neighbour.
        self._least_rows, self._least_logit_rows = (2, shapes.max_rows) if shapes.fixed else (1, 1)
        self._int8: Int8Attention | None = None
        self._non_finite: NonFiniteRows | None = None
        if scales is not None:
            most = shapes.max_rows + 1  # a lone last row has a neighbour
            self._int8 = Int8Attention(sessions, scales, most, bool(shapes.fixed))
            self._non_finite = NonFiniteRows(self._rows)

    @property
    def shapes(self) -> ShapeTable:
        """The shapes given."""
        return self._shapes

    @property
    def device(self) -> str:
        """What the provider says it computes on."""
        return self._device

    @property
    def restrides(self) -> int:
        """How often a sequence outgrew the memory of its cache."""
        return self._caches.widened

    @property
    def part_seconds(self) -> Mapping[str, float]:
        """Seconds of inputs and bindings, of the linear graphs, of attention, and of the head."""
        return self._parts.seconds

    def lay_out(self, pool: int, shape: PassShape) -> None:
        """A pool has no width."""

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [R, V] of one pass, valid until the next. PassFailed when onnxruntime raises."""
        rows = batch.shape.rows
        self._parts.begin()
        caches = self._caches.place(batch, self._least_rows)
        steps = self._recurrent.states.begin(batch) if self._recurrent else []
        batch = self._in_order(batch, caches)
        placed = list(zip(batch.segments, caches, strict=True))
        others = [(segment, cache) for segment, cache in placed if _needs_mask(segment, cache)]
        if others and (self._masked is None or any(segment.both_ways and self._recurrent for segment, _ in others)):
            raise PassFailed("the bundle has no graph for rows that see both ways")
        bound = [self._bound(cache, segment, rows) for segment, cache in placed if not _needs_mask(segment, cache)]
        work = self._masked.prepare(batch, others) if self._masked else None
        recurrent = self._recurrent.bound(batch.segments, steps, rows) if self._recurrent else []
        self._rows.fill(batch, self._rotary)
        self._adapters.start(batch)
        if self._non_finite is not None:
            self._non_finite.start(rows)
        self._parts.mark("inputs")
        try:
            with np.errstate(invalid="ignore", over="ignore"):  # looking for what is not finite adds it up
                self._run_layers(bound, work, recurrent, rows)
            logits = Logits.of(self._chain.logits(batch.logit_rows, rows, self._least_logit_rows))
            self._parts.mark("head")
            return logits
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise PassFailed(f"a pass of {rows} rows failed: {str(error)[:300]}") from error

    def _run_layers(
        self,
        bound: Sequence[BoundAttention],
        work: MaskedWork | None,
        recurrent: Sequence[Sequence[Binding]],
        rows: int,
    ) -> None:
        steps = iter(recurrent)
        for layer, part in enumerate(self._chain.layers(rows)):
            part.run()
            index = self._cache_of.get(layer)
            if index is None:
                self._parts.mark("linear")
                for step in next(steps):
                    step.run()
                self._parts.mark("recurrent")
                continue
            if self._non_finite is not None:
                self._non_finite.look()
            self._parts.mark("linear")
            for attention in bound:
                attention.layers[index].run()
            if self._masked and work:
                self._masked.run(work, index, rows)
            self._parts.mark("attention")

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] whose new keys or values hold infinity or NaN."""
        if self._non_finite is not None:
            return rows[np.isin(self._row_of[rows], self._non_finite.among(self._row_of[rows]))]
        spoiled: list[int] = []
        for segment, cache in self._caches.last:
            new = cache.new_columns(segment)
            with np.errstate(invalid="ignore", over="ignore"):
                sums = cache.keys[..., new, :].sum(axis=(0, 1, 2, 4)) + cache.values[..., new, :].sum(axis=(0, 1, 2, 4))
            spoiled += (segment.start + np.flatnonzero(~np.isfinite(sums))).tolist()
        return rows[np.isin(rows, spoiled)]

    def keep(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Let the keys and values of `rows` [M] count, as what lies in the pages of `columns` [M]."""
        self._caches.keep(pool, rows.tolist(), columns.tolist())
        if self._recurrent:
            self._recurrent.states.keep(frozenset(rows.tolist()))

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Copy the keys and values of a page to memory of its own."""
        self._caches.offload(pool, columns, key)

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Let a page be what was offloaded as `key`."""
        self._caches.load(pool, columns, key)

    def offloaded(self, key: bytes) -> bytes:
        """The copy of a page as bytes."""
        return self._caches.offloaded(key)

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        """Put the copy of a page there."""
        self._caches.put_offloaded(key, content)

    def evict(self, key: bytes) -> None:
        """Forget the copy."""
        self._caches.evict(key)

    def free(self, pool: int, pages: Collection[int]) -> None:
        """Give back the memory of sequences of which no page is wanted any more."""
        self._caches.free(pool, pages)

    def forget_states(self, sequences: Collection[str], snapshots: Collection[bytes]) -> None:
        """Give back what the recurrent layers carried for sequences that have ended, and snapshots of it."""
        if self._recurrent:
            self._recurrent.states.forget(sequences, snapshots)

    def close(self) -> None:
        """Drop bindings, then buffers: a binding must not outlive what it points to."""
        self._caches.clear()
        self._chain.clear()

    def _in_order(self, batch: PackedBatch, caches: Sequence[Cache]) -> PackedBatch:
        """The pass with its rows where they are bound already. One shape for every pass leaves all as it is."""
        if self._shapes.fixed:
            self._row_of = np.arange(batch.shape.rows)
            return batch
        arranged = self._places.arrange(batch, caches)
        self._row_of = arranged.row_of
        return arranged.batch

    def _bound(self, cache: Cache, segment: PackedSegment, rows: int) -> BoundAttention:
        """The cache bound to the segment's rows, its lengths those of this pass."""
        count = max(segment.count, self._least_rows)
        place = (rows - segment.start, count)  # from the end, where decodes keep their place
        found = cache.bound_at(place, partial(self._bind, cache))
        last_column, columns = found.told
        last_column[...] = segment.past + count - 1
        columns[...] = segment.past + count
        return found

    def _bind(self, cache: Cache, place: tuple[int, ...]) -> BoundAttention:
        lengths = np.zeros(1, np.int32), np.zeros((), np.int32)
        layers = [
            self._bind_layer(layer, keys, values, place, lengths)
            for layer, (keys, values) in enumerate(zip(cache.keys, cache.values, strict=True))
        ]
        return BoundAttention(layers, lengths)

    def _bind_layer(
        self,
        layer: int,
        keys: NDArray[np.generic],
        values: NDArray[np.generic],
        place: tuple[int, ...],
        lengths: Sequence[NDArray[np.int32]],
    ) -> Binding | ChunkBinding:
        rows = self._rows.attention_rows(*place)
        inputs = {"past_key": keys, "past_value": values, "seqlens_k": lengths[0], "total_sequence_length": lengths[1]}
        for name in ("query", "key", "value"):
            inputs[name] = rows[name]
        if self._int8 is not None:
            return self._int8.bind_layer(layer, inputs, rows["attended"], lengths[1])
        bound = Binding(self._attention, self._attention.io_binding(), [])
        for name, array in inputs.items():
            bind(bound, bound.binding.bind_input, name, array)
        for name, array in (("attended", rows["attended"]), ("present_key", keys), ("present_value", values)):
            bind(bound, bound.binding.bind_output, name, array)
        return bound


def _needs_mask(segment: PackedSegment, cache: Cache) -> bool:
    return segment.both_ways or cache.base is not None
