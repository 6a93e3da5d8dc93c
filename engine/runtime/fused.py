"""Runs a bundle of fused prefill/decode graphs: one prompt and up to D decodes a step, each over a cache of its own.

Legend: N = rows, R = those that need logits, M = some of its rows, V = vocabulary.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable, StepShape
from engine.errors import StepFailed
from engine.runtime.buffers import RotationTables
from engine.runtime.fused_graphs import BoundGraph, FusedCache, FusedCaches, Placement, place
from engine.runtime.interface import Logits, PackedBatch, PackedSegment, RowLayout, Runtime
from engine.runtime.sessions import Provider, load_sessions

log = logging.getLogger("hexserve.worker")

TRIAL_PAST = 2  # tokens that the trial's caches are said to hold


class CacheUpdate(Enum):
    """By whom a cache is written."""

    HOST = "the host"  # kept rows are copied from the graph's fresh keys and values
    IN_PLACE = "the graph, in place"  # its updated caches lie in the memory of its inputs
    COPIED = "the graph, as a copy"  # they are whole caches elsewhere, which take the place of the old ones


def choose_update(manifest: Manifest, graphs: Sequence[BoundGraph], rotary: RotationTables) -> CacheUpdate:
    """In place where every graph, tried once, then gives the bytes of a copy. StepFailed when one cannot run."""
    assert manifest.fused is not None
    if not manifest.fused.kv_update_on_device:
        return CacheUpdate.HOST
    serials = count(-1, -1)
    is_same = all(_updates_in_place(manifest, graph, rotary, serials.__next__) for graph in graphs)
    for graph in graphs:
        graph.clear()
    return CacheUpdate.IN_PLACE if is_same else CacheUpdate.COPIED


def _updates_in_place(manifest: Manifest, graph: BoundGraph, rotary: RotationTables, serial: Callable[[], int]) -> bool:
    """Run a graph over caches of the same contents with a copy and in place: same caches, same logits?"""
    assert manifest.fused is not None
    columns = manifest.fused.columns
    batch = _trial_batch(graph, columns)
    placement = place(batch, graph.shape, columns)
    graph.inputs.fill(batch, placement, rotary)
    count_of_caches = len(graph.shape.caches)
    before, copies, mine = ([FusedCache(manifest, serial()) for _ in range(count_of_caches)] for _ in range(3))
    for number, caches in enumerate(zip(before, copies, mine, strict=True), 1):
        for cache in (caches[0], caches[2]):
            cache.keys[..., :TRIAL_PAST] = number
            cache.values[..., :TRIAL_PAST, :] = number
    graph.run(before, copies)
    expected = graph.logits.copy()
    try:
        graph.run(mine, mine)
    except StepFailed as error:
        log.info("caches cannot be written in place: %s", error)
        return False
    return np.array_equal(expected, graph.logits) and all(
        np.array_equal(copy.keys, own.keys) and np.array_equal(copy.values, own.values)
        for copy, own in zip(copies, mine, strict=True)
    )


def _trial_batch(graph: BoundGraph, columns: int) -> PackedBatch:
    """A prompt and decodes that leave some rows unused and every slot used."""
    shape = graph.shape
    past, prompt = min(TRIAL_PAST, columns - 2), min(2, shape.prefill_rows)
    counts = ([prompt] if prompt else []) + [1] * shape.slots
    layout, row = RowLayout(StepShape(shape.rows, columns), sum(counts)), shape.rows - sum(counts)
    for index, size in enumerate(counts):
        layout.add(range(row, row + size), row, (index,), past)
        row += size
    return layout.batch(block_size=columns)


@dataclass(frozen=True, slots=True)
class _LastStep:
    """What `keep` needs to know of a step: by cache of the graph, whose it was, and where the updated one lies."""

    graph: BoundGraph
    placement: Placement
    segments: tuple[PackedSegment | None, ...]
    caches: tuple[FusedCache, ...]
    updated: tuple[FusedCache, ...]


class FusedRuntime(Runtime):
    """For any provider. A block of the pool is a whole cache, and stays where it is.

    update: how new keys and values get into the caches; None = as the graphs and the provider allow.
    Raises BundleError when a graph cannot be loaded.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        shapes: ShapeTable,
        provider: Provider,
        update: CacheUpdate | None = None,
    ) -> None:
        assert manifest.fused is not None
        super().__init__(shapes, provider.device)
        self._columns = manifest.fused.columns
        self._sessions = load_sessions(folder, manifest, provider)
        # Sole owner of graphs' buffers and of the caches.
        graphs = [BoundGraph(manifest, graph, self._sessions[graph.name]) for graph in manifest.graphs]
        self._graphs = {graph.shape.rows: graph for graph in graphs}
        self._caches = FusedCaches(manifest)
        self._rotary = RotationTables(manifest.model.rope)
        self._last: _LastStep | None = None
        self.update = update or choose_update(manifest, graphs, self._rotary)
        log.info("fused caches are updated by %s", self.update.value)

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [R, V] of one step, valid until the next. StepFailed when it does not fit or onnxruntime raises."""
        self._parts.begin()
        graph = self._graphs[batch.shape.rows]
        placement = place(batch, graph.shape, self._columns)
        logit_index = placement.logit_index(batch.logit_rows)
        segments = tuple(placement.segments_by_cache())
        caches = tuple(self._caches.begin(segments))
        self._last = _LastStep(graph, placement, segments, caches, self._targets(caches))
        graph.inputs.fill(batch, placement, self._rotary)
        self._parts.mark("inputs")
        graph.run(caches, self._last.updated)
        self._parts.mark("graph")
        return Logits(graph.logits[0, logit_index], graph.encoding)

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] whose keys or values hold infinity or NaN.

        Their caches are cleaned before they serve another sequence.
        """
        last = self._run_before()
        if last.graph.keys.dtype.kind != "f":
            return rows[:0]
        at = last.placement.row_of[rows]
        with np.errstate(invalid="ignore", over="ignore"):
            sums = last.graph.keys[..., at].sum(axis=(0, 1, 2, 3), dtype=np.float64)
            sums += last.graph.values[..., at, :].sum(axis=(0, 1, 2, 4), dtype=np.float64)
        spoiled: NDArray[np.int64] = rows[~np.isfinite(sums)]
        for index, segment in enumerate(last.segments):
            if segment is not None and ((spoiled >= segment.start) & (spoiled < segment.end)).any():
                for cache in (last.caches[index], *last.updated[index : index + 1]):
                    cache.is_spoiled = True
        return spoiled

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        last = self._run_before()
        for index, segment in enumerate(last.segments):
            if segment is None:
                continue
            mine = (rows >= segment.start) & (rows < segment.end)
            if mine.any():
                self._keep(last, index, segment, rows[mine], columns[mine])

    def _keep(
        self, last: _LastStep, index: int, segment: PackedSegment, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> None:
        block, at = int(columns[0]) // self._columns, columns % self._columns
        assert (at == segment.past + rows - segment.start).all(), "a cache holds a sequence's tokens in their order"
        cache = last.caches[index]
        if self.update is CacheUpdate.HOST:
            fresh = last.placement.row_of[rows]
            cache.keys[..., at] = last.graph.keys[..., fresh]
            cache.values[..., at, :] = last.graph.values[..., fresh, :]
        self._caches.name(block, cache if self.update is not CacheUpdate.COPIED else last.updated[index])

    def free(self, blocks: Collection[int]) -> None:
        """Caches that nobody wants serve other sequences."""
        self._caches.free(blocks)

    def close(self) -> None:
        """Drop bindings, then buffers, then sessions: a binding must not outlive what it points to."""
        for graph in self._graphs.values():
            graph.clear()
        self._last = None
        self._caches.clear()
        self._sessions.clear()

    def _targets(self, caches: tuple[FusedCache, ...]) -> tuple[FusedCache, ...]:
        if self.update is CacheUpdate.HOST:
            return ()
        return caches if self.update is CacheUpdate.IN_PLACE else tuple(self._caches.take() for _ in caches)

    def _run_before(self) -> _LastStep:
        assert self._last is not None, "before the first step"
        return self._last
