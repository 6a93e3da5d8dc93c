"""How new keys and values get into a sequence's cache, and what the provider at hand allows."""

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from itertools import count

import numpy as np

from engine.bundle.manifest import Manifest
from engine.bundle.variant import PassShape
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.fused.bound_graph import BoundGraph
from engine.graphs.fused.caches import FusedCache
from engine.graphs.fused.inputs import Tables
from engine.graphs.fused.placement import place

log = logging.getLogger("hexserve.worker")

TRIAL_PAST = 2  # tokens that the trial's caches are said to hold


class CacheUpdate(Enum):
    """By whom a cache is written."""

    HOST = "the host"  # kept rows are copied from the graph's fresh keys and values
    IN_PLACE = "the graph, in place"  # its updated caches lie in the memory of its inputs
    COPIED = "the graph, as a copy"  # they are whole caches elsewhere, which take the place of the old ones


def choose_update(manifest: Manifest, graphs: Sequence[BoundGraph], tables: Tables) -> CacheUpdate:
    """In place where every graph, tried once, then gives the same bytes as with a copy."""
    assert manifest.fused is not None
    if not manifest.fused.kv_update_on_device:
        return CacheUpdate.HOST
    serials = count(-1, -1)
    is_same = all(_updates_in_place(manifest, graph, tables, serials.__next__) for graph in graphs)
    for graph in graphs:
        graph.clear()
    return CacheUpdate.IN_PLACE if is_same else CacheUpdate.COPIED


def _updates_in_place(manifest: Manifest, graph: BoundGraph, tables: Tables, serial: Callable[[], int]) -> bool:
    """Run a graph over caches of the same contents with a copy and in place: same caches, same logits?"""
    assert manifest.fused is not None
    columns = manifest.fused.columns
    batch = _trial_batch(graph, columns)
    placement = place(batch, graph.shape, columns)
    graph.inputs.fill(batch, placement, tables)
    count_of_caches = len(graph.shape.caches)
    before, copies, mine = ([FusedCache(manifest, serial()) for _ in range(count_of_caches)] for _ in range(3))
    for number, caches in enumerate(zip(before, copies, mine, strict=True), 1):
        for cache in caches:
            cache.clean()
        for cache in (caches[0], caches[2]):
            cache.keys[..., :TRIAL_PAST] = number
            cache.values[..., :TRIAL_PAST, :] = number
    graph.run(before, copies)
    expected = graph.logits.copy()
    try:
        graph.run(mine, mine)
    except Exception as error:  # noqa: BLE001 (onnxruntime's exceptions share no base class of their own)
        log.info("%s cannot write its caches in place: %s", graph.shape.name, str(error)[:200])
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
    starts = [shape.rows - sum(counts[index:]) for index in range(len(counts))]
    segments = tuple(
        PackedSegment(start, size, (index,), past, columns)
        for index, (start, size) in enumerate(zip(starts, counts, strict=True))
    )
    numbers = np.arange(shape.rows, dtype=np.int32)
    return PackedBatch(
        PassShape(shape.rows, columns), 0, numbers, numbers, np.zeros(0, np.int64), segments, page_columns=columns
    )
