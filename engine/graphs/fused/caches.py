"""Caches of fused graphs: each sequence has one of its own, all are of one size, and none is ever copied or re-laid.

A page of the scheduler's pool is a whole cache here. A cache gets its page's name when the first rows in it are kept.
Legend: L = layers, K = KV heads, H = head size, P = columns.
"""

from collections.abc import Collection, Sequence
from itertools import count

import numpy as np

from engine.bundle.encoding import Array, encoding_of
from engine.bundle.fused import cache_tensors, fused_shape
from engine.bundle.manifest import Manifest
from engine.errors import PassFailed
from engine.graphs.batch import PackedSegment


class FusedCache:
    """Keys [L, K, 1, H, P] and values [L, K, 1, P, H] of one sequence. serial: tells it from all others."""

    def __init__(self, manifest: Manifest, serial: int) -> None:
        assert manifest.fused is not None
        model, past = manifest.model, manifest.fused.past
        lead = (model.layers, model.kv_heads, 1)
        self.serial = serial
        self.keys: Array = np.empty((*lead, model.head_dim, past), manifest.kv_dtype)
        self.values: Array = np.empty((*lead, past, model.head_dim), manifest.kv_dtype)
        self.is_spoiled = True
        self._zeros = _zero_codes(manifest)

    def clean(self) -> None:
        """Nothing but zeros: under a mask a column still counts as 0 times its value, and 0 times NaN is NaN."""
        self.keys[...] = self._zeros[0].reshape(-1, 1, 1, 1, 1)
        self.values[...] = self._zeros[1].reshape(-1, 1, 1, 1, 1)
        self.is_spoiled = False


class FusedCaches:
    """Sole owner of the caches. `blank` stands where a graph wants a cache and no sequence has one."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._serials = count()
        self._named: dict[int, FusedCache] = {}
        self._spares: list[FusedCache] = []
        self._handed_out: list[FusedCache] = []
        self.blank = self.take()
        self._handed_out.clear()

    def begin(self, segments: Sequence[PackedSegment | None]) -> list[FusedCache]:
        """The cache of each segment, `blank` for None. What the pass before took and did not name is spare again.

        PassFailed when a segment has a past and its cache is not here.
        """
        named = {cache.serial for cache in self._named.values()}
        for cache in self._handed_out:
            if cache.serial not in named:
                self._spares.append(cache)
        self._handed_out.clear()
        return [self._cache_of(segment) for segment in segments]

    def take(self) -> FusedCache:
        """A cache that is nobody's, for this pass; `name` keeps it."""
        cache = self._spares.pop() if self._spares else FusedCache(self._manifest, next(self._serials))
        if cache.is_spoiled:
            cache.clean()
        self._handed_out.append(cache)
        return cache

    def name(self, page: int, cache: FusedCache) -> None:
        """From now on the page is what lies in this cache."""
        before = self._named.get(page)
        if before is not None and before is not cache:
            self._spares.append(before)
        self._named[page] = cache

    def free(self, pages: Collection[int]) -> None:
        """Nobody wants what lies in these pages."""
        for page in pages:
            cache = self._named.pop(page, None)
            if cache is not None and all(other is not cache for other in self._handed_out):
                self._spares.append(cache)

    def clear(self) -> None:
        """Let go of everything."""
        self._named.clear()
        self._spares.clear()
        self._handed_out.clear()

    def _cache_of(self, segment: PackedSegment | None) -> FusedCache:
        if segment is None:
            return self.blank
        if not segment.pages:
            return self.take()
        found = self._named.get(segment.pages[0])
        if found is None:
            raise PassFailed(f"nothing lies in cache {segment.pages[0]}, of which {segment.past} columns are wanted")
        return found


def _zero_codes(manifest: Manifest) -> Array:
    """[2, L]: what zero is stored as in the keys and values of each layer."""
    graph = manifest.graphs[0]
    specs = {tensor.name: tensor for tensor in graph.inputs}
    cache = fused_shape(graph.name).caches[0]
    names = [cache_tensors("past", cache, layer) for layer in range(manifest.model.layers)]
    return np.array([[encoding_of(specs[pair[side]]).zero_point for pair in names] for side in range(2)])
