"""Runs a bundle of fused prefill/decode graphs: one prompt and up to D decodes a step, each over a cache of its own.

Legend: N = rows, R = those that need logits, M = some of its rows, V = vocabulary.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable
from engine.runtime.buffers import RotationTables
from engine.runtime.fused_graphs import BoundGraph, FusedCache, FusedCaches, Placement, place
from engine.runtime.interface import Logits, PackedBatch, PackedSegment, Runtime
from engine.runtime.qnn.provider import NPU
from engine.runtime.sessions import Provider, load_sessions

log = logging.getLogger("hexserve.worker")


class CacheUpdate(Enum):
    """By whom a cache is written."""

    HOST = "the host"  # kept rows are copied from the graph's fresh keys and values
    IN_PLACE = "the graph, in place"  # its updated caches lie in the memory of its inputs
    COPIED = "the graph, as a copy"  # they are whole caches elsewhere, which take the place of the old ones


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

    update: how new keys and values get into the caches; None = as the graphs and the device allow.
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
        # In place on the CPU and in the emulator, which are known to allow it.
        by_graph = CacheUpdate.COPIED if provider.device == NPU else CacheUpdate.IN_PLACE
        self.update = update or (by_graph if manifest.fused.kv_update_on_device else CacheUpdate.HOST)
        log.info("fused caches are updated by %s", self.update.value)

    def run(self, batch: PackedBatch) -> Logits:
        self._parts.begin()
        graph = self._graphs[batch.shape.rows]
        placement = place(batch, graph.shape, self._columns)
        logit_index = placement.logit_index(batch.logit_rows)
        segments = tuple(placement.segments_by_cache())
        caches = tuple(self._caches.begin(segments))
        self._last = _LastStep(graph, placement, segments, caches, self._targets(caches))
        graph.fill(batch, placement, self._rotary)
        self._parts.mark("inputs")
        graph.run(caches, self._last.updated)
        self._parts.mark("graph")
        return Logits(graph.logits[0, logit_index], graph.encoding)

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] whose keys or values hold infinity or NaN.

        Their caches are cleaned before they serve another sequence.
        """
        last = self._run_before()
        at = last.placement.row_of[rows]
        with np.errstate(invalid="ignore", over="ignore"):
            spoiled: NDArray[np.int64] = rows[np.isin(at, last.graph.fresh.non_finite(at))]
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
            cache.keys[..., at] = last.graph.fresh.keys[..., fresh]
            cache.values[..., at, :] = last.graph.fresh.values[..., fresh, :]
        self._caches.name(block, cache if self.update is not CacheUpdate.COPIED else last.updated[index])

    def free(self, blocks: Collection[int]) -> None:
        self._caches.free(blocks)

    def close(self) -> None:
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
