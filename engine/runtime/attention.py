"""Causal attention of a segmented bundle: the rows of each sequence over its own cache, layer by layer.
Legend: L = layers with keys and values, N = rows, K = KV heads, T = columns of a cache, D = head size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from engine.bundle import segments
from engine.bundle.manifest import Manifest
from engine.bundle.tensors import Array
from engine.runtime.interface import PackedSegment
from engine.runtime.kv_memory import SequenceCache
from engine.runtime.linear import RowBuffers
from engine.runtime.onnx_library import ort
from engine.runtime.sessions import Binding, Buffers, SharedValues, bind_all

SCALES = "key_scale", "value_scale"
HIDDEN = np.float32(-1e30)  # added to a score; infinity would make NaN of a row that sees nothing
# When the graph for few rows is faster, besides by the queries of a key head: rows, and columns that there is memory
# for by those that are seen.
GROUPED_ROWS, MOST_COMPUTED = 8, 1.5
# The operator computes the scores of all its rows with all columns, hidden ones too, and holds them at once. Fewer rows
# at a time leave out most of the hidden ones. Behind many columns these are few, and few rows are multiplied slower.
ROWS_AT_ONCE, MANY_COLUMNS, ROWS_BEHIND_MANY = 128, 4096, 256
_GROUPED = 0  # marks its places: what stands under a mask says there how far from the end it is, at least 1


@dataclass(frozen=True, slots=True)
class AttentionWindow:
    """A row sees the first `sinks` columns and the last `recent`, its own among them; recent 0 = all columns.
    Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453; here positions are kept."""

    recent: int = 0
    sinks: int = 0

    def hides_some(self, columns: int) -> bool:
        """Whether a row that is the last of so many columns does not see all of them."""
        return self.recent > 0 and self.recent + self.sinks < columns

    def visible(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool [rows, columns] of positions in a sequence; what comes after a row is not hidden here."""
        if not self.recent:
            return np.ones((len(rows), len(columns)), np.bool_)
        return (columns[None, :] < self.sinks) | (columns[None, :] > rows[:, None] - self.recent)


EVERYTHING = AttentionWindow()


_sum = np.add.reduce


@dataclass(slots=True)
class BoundAttention:
    """One cache bound to one place among the rows: a binding for each layer, and the arrays that all of them read.
    told: what changes from step to step, lengths or a mask: of all columns, then of those that windows leave. caches:
    values of what is the same at every place."""

    layers: Sequence["Binding | WritingBinding"]
    told: tuple[Array, ...]
    caches: SharedValues = field(default_factory=SharedValues)


Cache = SequenceCache[BoundAttention]


@dataclass(slots=True)
class WritingBinding:
    """A graph that does not write its fresh columns, bound to one cache: they are copied.
    rows: of keys and values [K, N, D], which go behind the past of `targets` [K, T, D]. columns: past ones and N.
    is_first: the graph reads what is copied, else it gives it."""

    graph: Binding
    rows: tuple[Array, Array]
    targets: tuple[Array, Array]
    columns: Array
    is_first: bool

    def run(self) -> None:
        if not self.is_first:
            self.graph.run()
        end = int(self.columns)
        new = slice(end - self.rows[0].shape[1], end)
        self.targets[0][:, new], self.targets[1][:, new] = self.rows
        if self.is_first:
            self.graph.run()


class CausalAttention:
    """Each row sees its sequence's past, the rows before it and itself. The graph writes the fresh columns.
    scales: [L, 2, K, D] of int8 caches, None with float ones. is_uniform: one way to compute, whatever the number of
    rows: with int8 caches always the graph for many, and a lone row, which the operator takes another way, gets a
    neighbour."""

    def __init__(
        self,
        manifest: Manifest,
        sessions: Mapping[str, ort.InferenceSession],
        rows: RowBuffers,
        scales: NDArray[np.float32] | None,
        is_uniform: bool,
    ) -> None:
        model = manifest.model
        layers = model.attention_layers
        # Of each layer with attention: its number, and whose keys and values it reads, counted among them.
        self._layers = [(layer, layers.index(model.owner_of(layer))) for layer in layers]
        self._forms = model.layer_forms
        self._sessions = sessions
        self._rows = rows
        self._scales = None if scales is None else scales[:, :, None, :, None, :]  # of a layer and side: [1, K, 1, D]
        # Most rows that the operator computes and writes by itself.
        own_rows = {segments.FLOAT: rows.most + 1, segments.HALF: 0}
        self._in_place_rows = own_rows.get(manifest.kv_dtype, 0 if is_uniform else segments.IN_PLACE_ROWS)
        names = segments.grouped_names(model, manifest.kv_dtype)
        forms = [model.heads_of(form) for name, form in names.items() if name in sessions]
        self._group = 0 if is_uniform else min((form.heads // form.kv_heads for form in forms), default=0)
        # What a chunk gives is copied before the next chunk is run.
        width = 0 if manifest.kv_dtype == segments.FLOAT else model.kv_heads * model.head_dim
        self._codes = np.zeros((2, 1, rows.most + 1, width), manifest.kv_dtype)
        self.least_rows = 2 if is_uniform else 1
        # Where caches are rounded, every part would widen the past anew.
        self._has_parts = manifest.kv_dtype == segments.FLOAT and not is_uniform

    def parts(self, segment: PackedSegment) -> list[PackedSegment]:
        """The rows that are computed at once: each part sees the keys and values that those before it have written."""
        is_near = segment.past + segment.count <= MANY_COLUMNS
        most = (ROWS_AT_ONCE if is_near else ROWS_BEHIND_MANY) if self._has_parts else segment.count
        start, count, past = segment.start, segment.count, segment.past
        return [
            replace(segment, start=start + done, count=min(most, count - done), past=past + done)
            for done in range(0, count, most)
        ]

    def prepare(self, segment: PackedSegment, cache: Cache, rows: int) -> BoundAttention:
        """The cache bound to the segment's rows in a step of `rows` rows, its lengths those of this step."""
        count = max(segment.count, self.least_rows)
        place: tuple[int, ...] = (rows - segment.start, count)  # from the end, where decodes keep their place
        # Few rows over most of what there is memory for are computed faster by the graph for them.
        is_grouped = count * self._group >= segments.LEAST_PRODUCTS and count <= GROUPED_ROWS
        is_grouped = is_grouped and cache.columns <= MOST_COMPUTED * (segment.past + count)
        found = cache.bound_at((*place, _GROUPED) if is_grouped else place, partial(self._bind, cache))
        for start, lengths in ((0, found.told[:2]), (cache.start, found.told[2:4])):
            last_column, columns = lengths
            last_column[...] = segment.past - start + count - 1
            columns[...] = segment.past - start + count
        if is_grouped:
            cache.clean_behind(segment.past + count)
            for row, mask in enumerate(found.told[4][:, 0], segment.past + 1):
                mask[:row], mask[row:] = 0, HIDDEN
        return found

    def _bind(self, cache: Cache, place: tuple[int, ...]) -> BoundAttention:
        """A sequence with guesses moves in every step, so layers and places share the values that they can."""
        from_end, count, *grouped = place
        told: tuple[Array, ...] = tuple(np.zeros(shape, np.int32) for _ in range(2) for shape in ((1,), ()))
        if grouped:
            told = (*told, np.zeros((count, 1, cache.columns), np.float32))
        earlier = next(iter(cache.bound.values()), None)
        caches, here = earlier.caches if earlier else SharedValues(), SharedValues()
        found: dict[str, NDArray[np.float32]] = {}  # rows, by the names of their buffers
        layers: list[Binding | WritingBinding] = []
        for index, (layer, owner) in enumerate(self._layers):
            names = self._rows.mixers[layer]
            found |= {name: self._rows.some(name, from_end, count) for name in names.values() if name not in found}
            rows = {tensor: found[name] for tensor, name in names.items()}
            keys, values, slides = cache.layer(owner)
            last_column, columns = told[2:4] if slides else told[:2]
            attended = here.of(rows["attended"])
            shared: Buffers = {"query": here.of(rows["query"])}
            shared |= {"past_key": caches.of(keys), "past_value": caches.of(values)}
            targets, fresh = (keys[0], values[0]), (rows["key"], rows["value"])
            if (
                grouped
                and (name := segments.attention_name(segments.GROUPED_ATTENTION, self._forms[index])) in self._sessions
            ):
                shared["mask"] = here.of(told[4])
                graph = bind_all(name, self._sessions[name], shared, {"attended": attended})
                layers.append(WritingBinding(graph, _by_heads(fresh, targets), targets, columns, True))
                continue
            shared |= {"seqlens_k": here.of(last_column), "total_sequence_length": here.of(columns)}
            shared |= {name: here.of(rows[name]) for name in ("key", "value")}
            if len(self._rows.sinks):
                shared[segments.SINKS] = caches.of(self._rows.sinks)
            if self._scales is not None:
                shared |= dict(zip(SCALES, self._scales[index], strict=True))
            if count <= self._in_place_rows:
                present: Buffers = {"present_key": shared["past_key"], "present_value": shared["past_value"]}
                layers.append(self._bind_graph(segments.ATTENTION, index, shared, {"attended": attended} | present))
            else:
                codes = self._codes[0, :, :count], self._codes[1, :, :count]
                outputs: Buffers = {"attended": attended, "key_codes": codes[0], "value_codes": codes[1]}
                chunk = self._bind_graph(segments.ATTENTION_CHUNK, index, shared, outputs)
                layers.append(WritingBinding(chunk, _by_heads(codes, targets), targets, columns, False))
        return BoundAttention(layers, told, caches)

    def _bind_graph(self, kind: str, layer: int, inputs: Buffers, outputs: Buffers) -> Binding:
        name = segments.attention_name(kind, self._forms[layer])
        return bind_all(name, self._sessions[name], inputs, outputs)


def _by_heads(rows: tuple[Array, Array], targets: tuple[Array, Array]) -> tuple[Array, Array]:
    """Rows [1, N, K * D] as what goes into targets [K, T, D]: [K, N, D]."""
    heads, _, size = targets[0].shape
    keys, values = (side.reshape(-1, heads, size).swapaxes(0, 1) for side in rows)
    return keys, values


class NonFiniteRows:
    """The rows of a step whose keys or values hold infinity or NaN in some layer.
    limit: what all numbers are kept within afterwards, 0 = nothing."""

    def __init__(self, buffers: RowBuffers, limit: float) -> None:
        self._buffers = buffers
        self._limit = limit
        self._found = np.zeros(0, np.bool_)
        self._keys = self._values = np.zeros(0, np.float32)  # of the layer at hand, all rows in one

    def start(self, rows: int) -> None:
        self._found = np.zeros(rows, np.bool_)
        self._keys, self._values = (self._buffers.rows(name, rows).reshape(-1) for name in ("key", "value"))

    def look(self) -> None:
        """Look at the keys and values that the layer at hand has just given. numpy may warn of their sum."""
        # Between two graphs every call costs microseconds, in each layer.
        if not isfinite(_sum(self._keys) + _sum(self._values)):  # rare; a sum may also just be too large
            for side in (self._keys, self._values):
                self._found |= ~np.isfinite(side.reshape(len(self._found), -1)).all(axis=1)
        if self._limit:
            for side in (self._keys, self._values):
                side.clip(-self._limit, self._limit, out=side)

    def among(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(rows[self._found[rows]], np.int64)
