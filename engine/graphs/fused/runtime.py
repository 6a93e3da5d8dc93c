"""Runs a bundle of fused prefill/decode graphs: one prompt and up to D decodes a pass, each over a cache of its own.

Legend: N = rows, R = those that need logits, M = some of its rows, V = vocabulary.
"""

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import PassShape, ShapeTable
from engine.errors import PassFailed
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.fused.bound_graph import BoundGraph
from engine.graphs.fused.caches import FusedCache, FusedCaches
from engine.graphs.fused.inputs import Tables
from engine.graphs.fused.placement import Placement, place
from engine.graphs.fused.update import CacheUpdate, choose_update
from engine.graphs.logits import Logits
from engine.graphs.onnx_sessions import Provider, load_sessions
from engine.graphs.stage_clock import StageClock

log = logging.getLogger("hexserve.worker")


@dataclass(frozen=True, slots=True)
class _LastPass:
    """What `keep` needs to know of a pass: by cache of the graph, whose it was, and where the updated one lies."""

    graph: BoundGraph
    placement: Placement
    segments: tuple[PackedSegment | None, ...]
    caches: tuple[FusedCache, ...]
    updated: tuple[FusedCache, ...]


class FusedRuntime:
    """Implements `Runtime` for any provider. A page of the pool is a whole cache, and stays where it is.

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
        self._columns = manifest.fused.columns
        self._shapes = shapes
        self._device = provider.device
        self._sessions = load_sessions(folder, manifest, provider)
        # Sole owner of graphs' buffers and of the caches.
        graphs = [BoundGraph(manifest, graph, self._sessions[graph.name]) for graph in manifest.graphs]
        self._graphs = {graph.shape.rows: graph for graph in graphs}
        self._caches = FusedCaches(manifest)
        self._tables: Tables = {}
        self._last: _LastPass | None = None
        self._parts = StageClock()
        self.update = update or choose_update(manifest, graphs, self._tables)
        log.info("fused caches are updated by %s", self.update.value)

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
        """Never: all graphs have the same past."""
        return 0

    @property
    def part_seconds(self) -> Mapping[str, float]:
        """Seconds of filling inputs and binding caches, and of the graph."""
        return self._parts.seconds

    def lay_out(self, pool: int, shape: PassShape) -> None:
        """A cache has one width."""

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [R, V] of one pass, valid until the next. PassFailed when it does not fit or onnxruntime raises."""
        self._parts.begin()
        graph = self._graphs[batch.shape.rows]
        placement = place(batch, graph.shape, self._columns)
        logit_index = placement.logit_index(batch.logit_rows)
        segments = tuple(placement.segments_by_cache())
        caches = tuple(self._caches.begin(segments))
        self._last = _LastPass(graph, placement, segments, caches, self._targets(caches))
        graph.inputs.fill(batch, placement, self._tables)
        self._parts.mark("inputs")
        try:
            graph.run(caches, self._last.updated)
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise PassFailed(f"graph {graph.shape.name} failed: {str(error)[:300]}") from error
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

    def keep(self, pool: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Let the keys and values of `rows` [M] count, as what lies in `columns` [M]: cache by cache."""
        last = self._run_before()
        for index, segment in enumerate(last.segments):
            if segment is None:
                continue
            mine = (rows >= segment.start) & (rows < segment.end)
            if mine.any():
                self._keep(last, index, segment, rows[mine], columns[mine])

    def _keep(
        self, last: _LastPass, index: int, segment: PackedSegment, rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> None:
        page, at = int(columns[0]) // self._columns, columns % self._columns
        assert (at == segment.past + rows - segment.start).all(), "a cache holds a sequence's tokens in their order"
        cache = last.caches[index]
        if self.update is CacheUpdate.HOST:
            fresh = last.placement.row_of[rows]
            cache.keys[..., at] = last.graph.keys[..., fresh]
            cache.values[..., at, :] = last.graph.values[..., fresh, :]
        self._caches.name(page, cache if self.update is not CacheUpdate.COPIED else last.updated[index])

    def offload(self, pool: int, columns: slice, key: bytes) -> None:
        """Never called: there is no host cache for whole caches. PassFailed."""
        raise PassFailed("caches of fused graphs are not offloaded")

    def load(self, pool: int, columns: slice, key: bytes) -> None:
        """Never called, as `offload`. PassFailed."""
        raise PassFailed("caches of fused graphs are not offloaded")

    def evict(self, key: bytes) -> None:
        """Nothing was offloaded."""

    def free(self, pool: int, pages: Collection[int]) -> None:
        """Caches that nobody wants serve other sequences."""
        self._caches.free(pages)

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

    def _run_before(self) -> _LastPass:
        assert self._last is not None, "before the first pass"
        return self._last
