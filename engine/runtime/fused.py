"""Runs a bundle of fused prefill/decode graphs: one prompt and up to D decodes a step, each over a cache of its own.

Legend: N = rows, R = those that need logits, M = some of its rows, V = vocabulary.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class _LastStep:
    """What `keep` needs to know of a step: by cache of the graph, whose it was."""

    graph: BoundGraph
    placement: Placement
    segments: tuple[PackedSegment | None, ...]
    caches: tuple[FusedCache, ...]


class FusedRuntime(Runtime):
    """For any provider. A block of the pool is a whole cache, and stays where it is.

    by_graph: whether graphs write new keys and values in place, else kept rows are copied from what is fresh; None =
    where the graphs can, but on an NPU, of which nobody knows whether it allows that.
    Raises BundleError when a graph cannot be loaded.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        shapes: ShapeTable,
        provider: Provider,
        by_graph: bool | None = None,
    ) -> None:
        assert manifest.fused is not None
        super().__init__(shapes, provider.device)
        self._columns = manifest.fused.columns
        self._sessions = load_sessions(folder, manifest, provider)
        # Sole owner of graphs' buffers and of the caches.
        graphs = [BoundGraph(manifest, graph, self._sessions[graph.name]) for graph in manifest.graphs]
        self._graphs = {graph.shape.rows: graph for graph in graphs}
        self._caches = FusedCaches(manifest)
        self._rotary = RotationTables(manifest.model)
        self._last: _LastStep | None = None
        can_write = manifest.fused.kv_update_on_device and provider.device != NPU
        self.by_graph = can_write if by_graph is None else by_graph
        log.info("fused caches are written by %s", "the graph, in place" if self.by_graph else "the host")

    def run(self, batch: PackedBatch) -> Logits:
        self._parts.begin()
        graph = self._graphs[batch.shape.rows]
        placement = place(batch, graph.shape, self._columns)
        logit_index = placement.logit_index(batch.logit_rows)
        segments = tuple(placement.segments_by_cache())
        caches = tuple(self._caches.begin(segments))
        self._last = _LastStep(graph, placement, segments, caches)
        graph.fill(batch, placement, self._rotary)
        self._parts.mark("inputs")
        graph.run(caches, self.by_graph)
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
                last.caches[index].is_spoiled = True
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
        if not self.by_graph:
            fresh = last.placement.row_of[rows]
            cache.keys[..., at] = last.graph.fresh.keys[..., fresh]
            cache.values[..., at, :] = last.graph.fresh.values[..., fresh, :]
        self._caches.name(block, cache)

    def free(self, blocks: Collection[int]) -> None:
        self._caches.free(blocks)

    def close(self) -> None:
        for graph in self._graphs.values():
            graph.clear()
        self._last = None
        self._caches.clear()
        self._sessions.clear()

    def _run_before(self) -> _LastStep:
        assert self._last is not None, "before the first step"
        return self._last
