"""Runs a segmented bundle: linear graphs over all rows, attention for each sequence over its own cache.
Legend: L = layers with keys and values, N = rows, R = those that need logits, K = KV heads, T = columns of a cache, D =
head size."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.adapters.adapter import Adapter
from engine.bundle.manifest import Manifest
from engine.bundle.segments import BASE_ATTENTION, FLOAT, HALF, MASKED_ATTENTION, OUT, RECURRENT, SHARED_DATA
from engine.bundle.tensors import Array
from engine.bundle.variant import ShapeTable
from engine.bundle.weight_files import ROUNDED, read_conv_weights, read_kv_scales
from engine.errors import StepFailed
from engine.runtime.attention import EVERYTHING, AttentionWindow, BoundAttention, Cache, CausalAttention, NonFiniteRows
from engine.runtime.embedded import EmbeddedRows
from engine.runtime.interface import Logits, PackedBatch, PackedSegment, Runtime
from engine.runtime.kv import SequenceCaches
from engine.runtime.linear import LinearChain, LoraRows, RowBuffers
from engine.runtime.masked_attention import MaskedAttention, MaskedWork
from engine.runtime.recurrent import RecurrentLayers, StateStep
from engine.runtime.sessions import Binding, LookedUpPages, Provider, load_sessions

# The same step with its rows in another order: segments stay in the batch's order, with other first rows; and, int64
# [N], the place of each row of the batch.
ArrangedBatch = tuple[PackedBatch, NDArray[np.int64]]


class RowPlaces:
    """Who decodes at which place, counted from the end. A sequence is known by the id() of an object of its own.
    Where an id has a new owner, that one gets the place of the old one: any place is right."""

    def __init__(self) -> None:
        self._decodes: list[int] = []

    def arrange(self, batch: PackedBatch, owners: Sequence[object]) -> ArrangedBatch:
        """Rows of prompts in their order, then single rows by place. owners: of the segments."""
        single = {id(owner): index for index, owner in enumerate(owners) if batch.segments[index].count == 1}
        self._settle(list(single))
        starts: dict[int, int] = {}
        rows = batch.shape.rows
        row = rows - sum(segment.count for segment in batch.segments)
        for index, segment in enumerate(batch.segments):
            if segment.count > 1:
                starts[index] = row
                row += segment.count
        for place, owner in enumerate(self._decodes):
            starts[single[owner]] = rows - 1 - place
        return _arranged(batch, [starts[index] for index in range(len(owners))])

    def _settle(self, decoding: list[int]) -> None:
        """Who is gone leaves a gap that a newcomer or the last one fills; other newcomers come after all."""
        newcomers = [owner for owner in decoding if owner not in self._decodes]
        self._drop_gone(decoding)
        for place, owner in enumerate(self._decodes):
            if owner not in decoding:
                self._decodes[place] = newcomers.pop() if newcomers else self._decodes.pop()
                self._drop_gone(decoding)
        self._decodes += newcomers

    def _drop_gone(self, decoding: list[int]) -> None:
        while self._decodes and self._decodes[-1] not in decoding:
            self._decodes.pop()


def _arranged(batch: PackedBatch, starts: list[int]) -> ArrangedBatch:
    row_of = np.arange(batch.shape.rows)
    segments: list[PackedSegment] = []
    for segment, start in zip(batch.segments, starts, strict=True):
        row_of[segment.start : segment.end] = np.arange(start, start + segment.count)
        segments.append(replace(segment, start=start))
    input_ids, positions = np.empty_like(batch.input_ids), np.empty_like(batch.positions)
    input_ids[row_of], positions[row_of] = batch.input_ids, batch.positions
    embedded = batch.embedded and EmbeddedRows(row_of[batch.embedded.rows], batch.embedded.values)
    axes = None if batch.axes is None else batch.axes[:, np.argsort(row_of)]
    logit_rows, size = row_of[batch.logit_rows], batch.block_size
    return PackedBatch(batch.shape, input_ids, positions, logit_rows, tuple(segments), size, embedded, axes), row_of


LEAST_SHARED = 128  # from here on 16 decodes upon one base take no longer than with copies


@dataclass(slots=True)
class _StepWork:
    """What a step runs between its linear graphs: by sequence, for those under a mask, by recurrent layer."""

    causal: list[BoundAttention]
    masked: MaskedWork | None = None
    recurrent: Sequence[Sequence[Binding]] = ()


class SegmentRuntime(Runtime):
    """On the CPU. A cache belongs to a sequence, blocks name what lies in it. BundleError for what cannot be loaded."""

    stores_blocks = True

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        shapes: ShapeTable,
        provider: Provider,
        adapters: Sequence[Adapter] = (),
        window: AttentionWindow = EVERYTHING,
    ) -> None:
        super().__init__(shapes, provider.device)
        sessions = load_sessions(folder, manifest, provider)
        self._looked_up = LookedUpPages((folder / SHARED_DATA).resolve())
        scales = read_kv_scales(folder, manifest) if manifest.kv_dtype == ROUNDED else None
        # One shape for every step means the same bits for a row, whoever shares the step and whoever computed its past.
        self._is_uniform = is_uniform = shapes.has_one_shape
        self._has_experts = manifest.model.experts is not None
        # Sole owner of rows, chain and caches.
        self._rows = RowBuffers(manifest, shapes.max_rows)
        self._adapters = LoraRows(manifest, adapters, is_uniform)
        self._chain = LinearChain(manifest, sessions, self._rows, self._adapters)
        self._causal = CausalAttention(manifest, sessions, self._rows, scales, is_uniform)
        has_masks = MASKED_ATTENTION in sessions  # bundles made earlier, and most with windows, have none
        self._masked = MaskedAttention(manifest, sessions, self._rows, scales, window) if has_masks else None
        self._window = window
        self._recurrent: RecurrentLayers | None = None
        if (recurrent := manifest.model.recurrent) is not None:
            weights = read_conv_weights(folder, manifest)
            self._recurrent = RecurrentLayers(recurrent, sessions[RECURRENT], self._rows, weights)
        # Rounded caches cannot show what is not finite, so the rows are looked at before they are rounded.
        limit = float(np.finfo(HALF).max) if manifest.kv_dtype == HALF else 0.0
        self._non_finite = None if manifest.kv_dtype == FLOAT else NonFiniteRows(self._rows, limit)
        # A base is read by all that stand on it; under a window each of them sees other columns of it.
        shares = BASE_ATTENTION in sessions and not is_uniform and not window.recent
        # How a sum is cut depends on its first column: where all bits are to be the same, windows give nothing back.
        least_shared = LEAST_SHARED if shares else None
        self._caches: SequenceCaches[BoundAttention] = SequenceCaches(manifest, least_shared, is_uniform)
        self.blocks = self._caches
        self._cache_of = {layer: index for index, layer in enumerate(manifest.model.attention_layers)}
        self._state_of = {layer: index for index, layer in enumerate(recurrent.layers if recurrent else ())}
        self._ends_recurrent = manifest.model.layers - 1 in self._state_of
        self._places = RowPlaces()
        self._row_of: NDArray[np.int64] = np.zeros(0, np.int64)  # where the rows of the last step were

    @property
    def relayouts(self) -> int:
        """How often a sequence outgrew the memory of its cache."""
        return self._caches.widened

    @property
    def experts(self) -> tuple[int, int]:
        return self._chain.routing.chosen, self._chain.routing.read

    def run(self, batch: PackedBatch) -> Logits:
        rows = batch.shape.rows
        self._parts.begin()
        caches = self._caches.place(batch, self._causal.least_rows)
        states = self._recurrent.states.begin(batch) if self._recurrent else []
        batch = self._in_order(batch, caches)
        work = self._prepare(batch, caches, states)
        self._rows.fill(batch)
        self._adapters.start(batch)
        self._parts.mark("inputs")
        with np.errstate(invalid="ignore", over="ignore"):  # looking for what is not finite adds it up
            for layer, part in enumerate(self._chain.layers(rows)):
                part.run()
                if not layer:
                    self._looked_up.give_back()
                self._mix(layer, work, rows)
        least = self.shapes.max_rows if self._is_uniform else 1
        logits = Logits.of(self._chain.logits(batch.logit_rows, rows, least))
        if self._has_experts:
            self._chain.routing.count(rows, len(batch.logit_rows))
        self._parts.mark("head")
        return logits

    def _prepare(self, batch: PackedBatch, caches: Sequence[Cache], states: Sequence[Sequence[StateStep]]) -> _StepWork:
        """Bind what mixes rows: attention of each sequence, that under a mask, and recurrence."""
        rows = batch.shape.rows
        work = _StepWork([])
        hidden: list[tuple[PackedSegment, Cache]] = []
        for segment, cache in zip(batch.segments, caches, strict=True):
            is_long = self._window.hides_some(segment.past + segment.count)
            if segment.block_rows > 1 or cache.base is not None or is_long:
                hidden.append((segment, cache))
            else:
                work.causal += [self._causal.prepare(part, cache, rows) for part in self._causal.parts(segment)]
        if hidden:
            has_blocks = any(segment.block_rows > 1 for segment, _ in hidden)
            if self._masked is None or (has_blocks and self._recurrent):
                raise StepFailed("the bundle has no graph for rows that see both ways")
            work.masked = self._masked.prepare(batch, hidden)
        if self._recurrent:
            work.recurrent = self._recurrent.bound(batch.segments, states, rows)
        if self._non_finite is not None:
            self._non_finite.start(rows)
        return work

    def _mix(self, layer: int, work: _StepWork, rows: int) -> None:
        """What follows the start of a layer: recurrence, attention over the caches, or both."""
        index = self._cache_of.get(layer)
        if index is not None and self._non_finite is not None:
            self._non_finite.look()
        self._parts.mark("linear")
        if layer in self._state_of:
            for step in work.recurrent[self._state_of[layer]]:
                step.run()
            self._parts.mark("recurrent")
        if index is None:
            return
        for attention in work.causal:
            attention.layers[index].run()
        if self._masked and work.masked:
            self._masked.run(work.masked, index, rows)
        self._parts.mark("attention")

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] with infinity or NaN in new keys or values, or in what the state of a last layer gave."""
        found = self._of_attention(rows)
        if self._ends_recurrent:
            with np.errstate(invalid="ignore", over="ignore"):
                sums = self._rows.rows(OUT, len(self._row_of))[0, self._row_of[rows]].sum(axis=1)
            return np.union1d(rows[~np.isfinite(sums)], found)
        return found

    def _of_attention(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._non_finite is not None:
            return rows[np.isin(self._row_of[rows], self._non_finite.among(self._row_of[rows]))]
        spoiled: list[int] = []
        for segment, cache in self._caches.last:
            for part, new in cache.written(segment):
                with np.errstate(invalid="ignore", over="ignore"):
                    sums = sum(side[..., new, :].sum(axis=(0, 1, 2, 4)) for side in (part.keys, part.values))
                spoiled += (segment.start + np.flatnonzero(~np.isfinite(sums))).tolist()
        return rows[np.isin(rows, spoiled)]

    def written(self, layer: int) -> tuple[Array, Array]:
        """Keys and values [1, K, rows, D] that the last step gave the first of its sequences, which it began.
        layer: counted among those with keys and values."""
        segment, cache = self._caches.last[0]
        keys, values, _ = cache.layer(layer)
        columns = cache.new_columns(segment)
        return keys[..., columns, :], values[..., columns, :]

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        self._caches.keep(rows.tolist(), columns.tolist())
        if self._recurrent:
            self._recurrent.states.keep(frozenset(rows.tolist()))

    def forget_states(self, sequences: Collection[str], snapshots: Collection[bytes]) -> None:
        if self._recurrent:
            self._recurrent.states.forget(sequences, snapshots)

    def close(self) -> None:
        self._caches.clear()
        self._chain.clear()

    def _in_order(self, batch: PackedBatch, caches: Sequence[Cache]) -> PackedBatch:
        """The step with its rows where they are bound already. One shape for every step leaves all as it is."""
        if self._is_uniform:
            self._row_of = np.arange(batch.shape.rows)
            return batch
        batch, self._row_of = self._places.arrange(batch, caches)
        return batch
