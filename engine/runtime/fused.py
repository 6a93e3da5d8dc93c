"""Runs a bundle of fused prefill/decode graphs: one prompt and up to D decodes a step, each over a cache of its own.
All caches are of one size, and none is ever copied or re-laid. A block of the scheduler's pool is a whole cache here: a
cache gets its block's name when the first rows in it are kept.
Legend: N = rows, R = those that need logits, M = some of its rows, V = vocabulary, L = layers, K = KV heads, H = head
size, D = decode slots, P = past columns."""

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.fused import CONTROL, CONTROL_HEAD, FusedShape, cache_tensors, fresh_tensors, fused_shape
from engine.bundle.manifest import GraphSpec, Manifest
from engine.bundle.tensors import LOGITS, Array, Encoding, encoding_of
from engine.bundle.variant import ShapeTable, StepShape
from engine.errors import StepFailed
from engine.runtime.buffers import Arena, Fresh, Pool, RotationTables, RowInputs, blank
from engine.runtime.interface import BlockStore, Logits, PackedBatch, PackedSegment, Runtime
from engine.runtime.onnx_library import ort
from engine.runtime.qnn.provider import NPU
from engine.runtime.sessions import Binding, Provider, bind_all, load_sessions

PADDING = -1


@dataclass(frozen=True, slots=True)
class Placement:
    """One step of a graph: the prompt's rows end where the decode slots begin, decodes take the last slots.
    row_of: int64 [rows of the batch], the graph's row of each, PADDING for those that hold nothing."""

    shape: FusedShape
    prefill: PackedSegment | None
    decodes: tuple[PackedSegment, ...]
    row_of: NDArray[np.int64]

    @property
    def base(self) -> int:
        """The graph's first row that holds a prompt token; the end of its prompt rows when there is none."""
        return self.shape.prefill_rows - (self.prefill.count if self.prefill else 0)

    @property
    def first_slot(self) -> int:
        """The first slot that decodes; they are counted from 0."""
        return self.shape.slots - len(self.decodes)

    def segments_by_cache(self) -> list[PackedSegment | None]:
        """Whose cache each of `FusedShape.caches` is, None where nobody's is needed."""
        prompt = [self.prefill] if self.shape.prefill_rows else []
        return [*prompt, *[None] * self.first_slot, *self.decodes]

    def moved(self, batch: PackedBatch, shape: StepShape) -> PackedBatch:
        """The batch in the graph's rows. In each of them the columns of the past are those of its own cache."""
        used = self.row_of != PADDING
        ids, positions = np.zeros(shape.rows, np.int32), np.zeros(shape.rows, np.int32)
        ids[self.row_of[used]], positions[self.row_of[used]] = batch.input_ids[used], batch.positions[used]
        segments = [replace(decode, start=int(self.row_of[decode.start]), blocks=(0,)) for decode in self.decodes]
        if self.prefill is not None:
            segments.append(replace(self.prefill, start=self.base, blocks=(0,)))
        return PackedBatch(shape, ids, positions, batch.logit_rows, tuple(segments), block_size=shape.past)

    def control(self) -> NDArray[np.int32]:
        """fusion_ctrl [5 + D]: is there a prompt, how many decodes, rows and past of the prompt, past of each slot.
        int32 [6] for one slot: prefill active, decode active, prefill rows, 0, prefill past, decode past."""
        control = np.zeros(CONTROL_HEAD + self.shape.slots, np.int32)
        if self.prefill is not None:
            control[[0, 2, 4]] = 1, self.prefill.count, self.prefill.past
        control[1] = len(self.decodes)
        control[CONTROL_HEAD + self.first_slot :] = [decode.past for decode in self.decodes]
        return control

    def logit_index(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the graph's logits of rows [R] of the batch are, [R]. StepFailed for a row that it gives none of."""
        index = self.row_of[rows] - (self.shape.rows - self.shape.logit_rows)
        if (index < 0).any():
            raise StepFailed(f"{self.shape.name} gives logits of its last {self.shape.logit_rows} rows only")
        return index


def place(batch: PackedBatch, shape: FusedShape, columns: int) -> Placement:
    """Put the segments of a step into a graph's rows; a cache holds `columns` tokens.
    StepFailed for what the graph cannot do: a second prompt, more rows or more columns than it has."""
    segments = batch.segments
    # A single row may stand in either place: it sees its own past and itself.
    has_prefill = bool(segments) and (segments[0].count > 1 or len(segments) > shape.slots)
    prefill, decodes = (segments[0], segments[1:]) if has_prefill else (None, segments)
    _check(shape, prefill, decodes, columns)
    row_of = np.full(batch.shape.rows, PADDING, np.int64)
    if prefill is not None:
        row_of[prefill.start : prefill.end] = np.arange(shape.prefill_rows - prefill.count, shape.prefill_rows)
    for row, decode in zip(range(shape.rows - len(decodes), shape.rows), decodes, strict=True):
        row_of[decode.start] = row
    return Placement(shape, prefill, decodes, row_of)


def _check(shape: FusedShape, prefill: PackedSegment | None, decodes: tuple[PackedSegment, ...], columns: int) -> None:
    if len(decodes) > shape.slots or any(decode.count != 1 for decode in decodes):
        rows = ", ".join(str(decode.count) for decode in decodes)
        raise StepFailed(f"{shape.name} decodes {shape.slots} sequences a row each beside one prompt, not rows {rows}")
    if prefill is not None and prefill.count > shape.prefill_rows:
        raise StepFailed(f"{prefill.count} prompt rows do not fit the {shape.prefill_rows} of {shape.name}")
    for segment in (*decodes, *((prefill,) if prefill else ())):
        if segment.block_rows > 1:
            raise StepFailed(f"{shape.name} has no rows that see both ways")
        if segment.past + segment.count > columns:
            tokens = f"{segment.past} cached tokens and {segment.count} new ones"
            raise StepFailed(f"{tokens} overflow a cache of {columns} KV slots")


class FusedCache(Pool):
    """Keys [L, K, 1, H, P] and values [L, K, 1, P, H] of one sequence. serial: tells it from all others."""

    def __init__(self, manifest: Manifest, serial: int) -> None:
        assert manifest.fused is not None
        super().__init__(manifest, manifest.fused.past, _zero_codes(manifest))
        self.serial = serial
        self.is_spoiled = False


class FusedCaches(BlockStore):
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
        """The cache of each segment, `blank` for None. What the step before took and did not name is spare again.
        StepFailed when a segment has a past and its cache is not here."""
        named = {cache.serial for cache in self._named.values()}
        self._spares += [cache for cache in self._handed_out if cache.serial not in named]
        self._handed_out.clear()
        return [self._cache_of(segment) for segment in segments]

    def take(self) -> FusedCache:
        """A cache that is nobody's, for this step; `name` keeps it."""
        cache = self._spares.pop() if self._spares else FusedCache(self._manifest, next(self._serials))
        if cache.is_spoiled:
            cache.clean()
            cache.is_spoiled = False
        self._handed_out.append(cache)
        return cache

    def name(self, block: int, cache: FusedCache) -> None:
        """From now on the block is what lies in this cache."""
        before = self._named.get(block)
        if before is not None and before is not cache:
            self._spares.append(before)
        self._named[block] = cache

    def free(self, blocks: Collection[int]) -> None:
        for block in blocks:
            cache = self._named.pop(block, None)
            if cache is not None and all(other is not cache for other in self._handed_out):
                self._spares.append(cache)

    def clear(self) -> None:
        self._named.clear()
        self._spares.clear()
        self._handed_out.clear()

    def _cache_of(self, segment: PackedSegment | None) -> FusedCache:
        if segment is None:
            return self.blank
        if not segment.blocks:
            return self.take()
        if segment.blocks[0] not in self._named:
            raise StepFailed(f"nothing lies in cache {segment.blocks[0]}, of which {segment.past} KV slots are wanted")
        return self._named[segment.blocks[0]]


def _zero_codes(manifest: Manifest) -> NDArray[np.int64]:
    """[2, L, 1]: what zero is stored as in the keys and values of each layer."""
    specs = {tensor.name: tensor for tensor in manifest.graphs[0].inputs}
    cache = fused_shape(manifest.graphs[0].name).caches[0]
    names = [cache_tensors("past", cache, layer) for layer in range(manifest.model.layers)]
    return np.array([[[encoding_of(specs[pair[side]]).zero_point] for pair in names] for side in range(2)], np.int64)


KEPT_BINDINGS = 64


class BoundGraph:
    """fresh: keys and values of a step's rows. logits: [1, D + 1, V], or [1, D, V].
    inputs: buffers by tensor name, written anew for every step. A row that holds nothing has id and position 0."""

    def __init__(self, manifest: Manifest, graph: GraphSpec, session: ort.InferenceSession) -> None:
        assert manifest.fused is not None
        self.shape: FusedShape = fused_shape(graph.name)
        self._step_shape = StepShape(self.shape.rows, manifest.fused.past)
        self._rows = RowInputs(Arena(), manifest, self._step_shape, {}, padding_sees=False)
        self.inputs: dict[str, Array] = {}
        for tensor in graph.inputs:
            array = blank(tensor) if tensor.name == CONTROL else self._rows.buffer(tensor)
            if array is not None:
                self.inputs[tensor.name] = array
        self.fresh = Fresh(Arena(), manifest, (), self.shape.rows)
        (logits,) = (tensor for tensor in graph.outputs if tensor.name == LOGITS)
        self.logits = blank(logits)
        self.encoding: Encoding = encoding_of(logits)
        self._session = session
        self._bindings: dict[tuple[int, ...], Binding] = {}

    def fill(self, batch: PackedBatch, placement: Placement, rotary: RotationTables) -> None:
        self._rows.fill(placement.moved(batch, self._step_shape), rotary)
        if CONTROL in self.inputs:
            self.inputs[CONTROL][...] = placement.control()

    def run(self, caches: Sequence[FusedCache], in_place: bool) -> None:
        """Run over caches in the order of `FusedShape.caches`. in_place: the graph writes them. StepFailed."""
        key = (in_place, *(cache.serial for cache in caches))
        found = self._bindings.pop(key, None) or self._bind(caches, in_place)
        self._bindings[key] = found
        if len(self._bindings) > KEPT_BINDINGS:
            del self._bindings[next(iter(self._bindings))]
        found.run()

    def clear(self) -> None:
        self._bindings.clear()

    def _bind(self, caches: Sequence[FusedCache], in_place: bool) -> Binding:
        outputs: dict[str, Array] = {LOGITS: self.logits}
        for layer, pair in enumerate(zip(self.fresh.keys, self.fresh.values, strict=True)):
            outputs |= zip(fresh_tensors(layer), pair, strict=True)
        inputs = self.inputs | self._tensors("past", caches)
        if in_place:
            outputs |= self._tensors("updated_past", caches)
        return bind_all(self.shape.name, self._session, inputs, outputs)

    def _tensors(self, kind: str, caches: Sequence[FusedCache]) -> dict[str, Array]:
        return {
            name: array
            for label, cache in zip(self.shape.caches, caches, strict=True)
            for layer, arrays in enumerate(zip(cache.keys, cache.values, strict=True))
            for name, array in zip(cache_tensors(kind, label, layer), arrays, strict=True)
        }


log = logging.getLogger("hexserve.worker")


class FusedRuntime(Runtime):
    """For any provider. A block of the pool is a whole cache, and stays where it is.
    by_graph: whether graphs write new keys and values in place, else kept rows are copied from what is fresh; None =
    where the graphs can, but on an NPU, of which nobody knows whether it allows that. Raises BundleError when a graph
    cannot be loaded."""

    def __init__(
        self, folder: Path, manifest: Manifest, shapes: ShapeTable, provider: Provider, by_graph: bool | None = None
    ) -> None:
        assert manifest.fused is not None
        super().__init__(shapes, provider.device)
        self._columns = manifest.fused.slots
        self._sessions = load_sessions(folder, manifest, provider)
        # Sole owner of graphs' buffers and of the caches.
        graphs = [BoundGraph(manifest, graph, self._sessions[graph.name]) for graph in manifest.graphs]
        self._graphs = {graph.shape.rows: graph for graph in graphs}
        self.blocks = self._caches = FusedCaches(manifest)
        self._rotary = RotationTables(manifest.model)
        self._last: tuple[BoundGraph, Placement] | None = None
        self._used: list[tuple[PackedSegment, FusedCache]] = []  # of the last step
        can_write = manifest.fused.kv_update_on_device and provider.device != NPU
        self.by_graph = can_write if by_graph is None else by_graph
        log.info("fused caches are written by %s", "the graph, in place" if self.by_graph else "the host")

    def run(self, batch: PackedBatch) -> Logits:
        self._parts.begin()
        graph = self._graphs[batch.shape.rows]
        placement = place(batch, graph.shape, self._columns)
        logit_index, segments = placement.logit_index(batch.logit_rows), placement.segments_by_cache()
        caches = self._caches.begin(segments)
        self._last = graph, placement
        self._used = [(each, cache) for each, cache in zip(segments, caches, strict=True) if each is not None]
        graph.fill(batch, placement, self._rotary)
        self._parts.mark("inputs")
        graph.run(caches, self.by_graph)
        self._parts.mark("graph")
        return Logits(graph.logits[0, logit_index], graph.encoding)

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of `rows` [M] with infinity or NaN in keys or values; their caches are cleaned before another use."""
        assert self._last is not None, "before the first step"
        graph, placement = self._last
        at = placement.row_of[rows]
        with np.errstate(invalid="ignore", over="ignore"):
            spoiled: NDArray[np.int64] = rows[np.isin(at, graph.fresh.non_finite(at))]
        for segment, cache in self._used:
            if ((spoiled >= segment.start) & (spoiled < segment.end)).any():
                cache.is_spoiled = True
        return spoiled

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        assert self._last is not None, "before the first step"
        graph, placement = self._last
        for segment, cache in self._used:
            mine = (rows >= segment.start) & (rows < segment.end)
            if not mine.any():
                continue
            own, block, at = rows[mine], int(columns[mine][0]) // self._columns, columns[mine] % self._columns
            assert (at == segment.past + own - segment.start).all(), "a cache holds a sequence's tokens in their order"
            if not self.by_graph:
                cache.keys[..., at] = graph.fresh.keys[..., placement.row_of[own]]
                cache.values[..., at, :] = graph.fresh.values[..., placement.row_of[own], :]
            self._caches.name(block, cache)

    def close(self) -> None:
        for graph in self._graphs.values():
            graph.clear()
        self._last, self._used = None, []
        self._caches.clear()
        self._sessions.clear()
