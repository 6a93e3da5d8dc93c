"""A segmented bundle in the plainest way: part after part over whole texts, with one part in memory at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.model_spec import LayerAttention, RopeSpec
from engine.bundle.segments import (
    ATTENTION,
    ATTENTION_CHUNK,
    CONV_WEIGHT,
    GAIN,
    GATE_IN,
    GATE_OUT,
    IN_PLACE_ROWS,
    MEMORY,
    MEMORY_OUT,
    OUT,
    TAIL,
    TAIL_OUT,
    attention_name,
    no_adapters,
)
from engine.bundle.specs import RecurrentSpec
from engine.bundle.vision import EMBEDDED, EMBEDS, deepstack_name
from engine.bundle.weight_files import ROUNDED, read_conv_weights, read_kv_scales
from engine.compile.check.parity import Session, open_session
from engine.runtime.buffers import linear_graphs

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
CHUNK_ROWS = 64  # of a prompt in one pass, as beside others
State = dict[str, Array]  # of one layer: conv_state and state
Record = Callable[[int, Array, Array], None]  # layer, keys and values [1, K, columns, D] of a text


@dataclass(frozen=True, slots=True)
class AttentionGraphs:
    """The attention graphs by name, opened. dtype: of the caches. forms: of the layers with attention.

    scales [L, 2, K, D]: of int8 caches.
    """

    graphs: Mapping[str, tuple[GraphSpec, Session]]
    dtype: str
    forms: tuple[LayerAttention, ...]
    scales: Float32 | None = None

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> "AttentionGraphs":
        """Those of a bundle."""
        found = [graph for graph in manifest.graphs if graph.kind is GraphKind.ATTENTION]
        scales = read_kv_scales(folder, manifest) if manifest.kv_dtype == ROUNDED else None
        opened = {spec.name: (spec, open_session(folder / spec.file)) for spec in found}
        return cls(opened, manifest.kv_dtype, manifest.model.layer_forms, scales)

    def run(self, layer: int, rows: int, tensors: Mapping[str, Array], past: int) -> dict[str, Array]:
        """What the graph for so many rows gives. layer: counted among those with keys and values."""
        is_chunk = rows > IN_PLACE_ROWS and self.scales is not None
        name = attention_name(ATTENTION_CHUNK if is_chunk else ATTENTION, self.forms[layer])
        feeds = dict(tensors)
        feeds["seqlens_k"] = np.array([past + rows - 1], np.int32)
        feeds["total_sequence_length"] = np.array(past + rows, np.int32)
        if self.scales is not None:
            feeds["key_scale"], feeds["value_scale"] = self.scales[layer][:, None, :, None]
        return _run(*self.graphs[name], feeds)


@dataclass(frozen=True, slots=True)
class RecurrenceGraph:
    """The graph of recurrent layers, opened, and the convolutions [R, C, W] that it takes."""

    spec: GraphSpec
    session: Session
    recurrent: RecurrentSpec
    weights: Float32

    def first_state(self) -> State:
        """Before the first token."""
        shapes: dict[str, tuple[int, ...]] = {TAIL: self.recurrent.tail_shape}
        if self.recurrent.has_memory:
            shapes[MEMORY] = self.recurrent.memory_shape
        return {name: np.zeros((1, *shape), np.float32) for name, shape in shapes.items()}

    def run(self, layer: int, tensors: Mapping[str, Array], state: State) -> tuple[Array, State]:
        """What a layer gives for rows, and the state after them."""
        weight = self.weights[self.recurrent.layers.index(layer)][:, None]
        outputs = _run(self.spec, self.session, {**tensors, **state, CONV_WEIGHT: weight})
        after = {TAIL: TAIL_OUT, MEMORY: MEMORY_OUT}
        return outputs[OUT], {name: outputs[after[name]] for name in state}


def recurrence_of(folder: Path, manifest: Manifest) -> RecurrenceGraph | None:
    """That of a bundle, None where no layer is recurrent."""
    recurrent = manifest.model.recurrent
    if recurrent is None:
        return None
    (spec,) = (graph for graph in manifest.graphs if graph.kind is GraphKind.RECURRENT)
    session = open_session(folder / spec.file)
    return RecurrenceGraph(spec, session, recurrent, read_conv_weights(folder, manifest))


@dataclass(slots=True)
class Chunk:
    """Rows of one pass. start: tokens of the text before it. tensors: what the parts have given so far, by name."""

    tokens: Sequence[int]
    start: int
    tensors: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class SegmentedSequence:
    """One text, cut into passes, and the cache of one layer at a time: keys and values [1, K, columns, D].

    kept: caches that later layers read as well.
    """

    manifest: Manifest
    chunks: list[Chunk]
    kept: dict[int, tuple[Array, Array]] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, tokens: Sequence[int], rows: int) -> "SegmentedSequence":
        """A text in passes of so many rows."""
        chunks = [Chunk(tokens[start : start + rows], start) for start in range(0, len(tokens), rows)]
        for chunk in chunks:
            chunk.tensors = first_tensors(manifest, chunk)
        return cls(manifest, chunks)

    def run_linear(self, spec: GraphSpec, session: Session) -> None:
        """One linear graph over all passes: its outputs take the place of the inputs they follow from."""
        for chunk in self.chunks:
            turns = rotation_rows(self.manifest.model.rope_of(spec.part - 1) if spec.part < spec.parts else None, chunk)
            outputs = _run(spec, session, chunk.tensors | turns)
            chunk.tensors |= outputs
            for given, taken in (("hidden_out", "hidden_in"), (GATE_OUT, GATE_IN)):
                if given in outputs:
                    chunk.tensors[taken] = outputs[given]

    def mix(
        self, layer: int, attention: AttentionGraphs, recurrence: RecurrenceGraph | None
    ) -> tuple[Array, Array] | None:
        """One layer's attention, which gives its caches back, or its recurrence."""
        if layer in self.manifest.model.attention_layers:
            return self.attend(layer, attention)
        assert recurrence is not None
        state = recurrence.first_state()
        for chunk in self.chunks:
            chunk.tensors[OUT], state = recurrence.run(layer, chunk.tensors, state)
        return None

    def attend(self, layer: int, attention: AttentionGraphs) -> tuple[Array, Array]:
        """One layer's attention, pass after pass over the growing cache, which is given back: keys, values."""
        model, columns = self.manifest.model, sum(len(chunk.tokens) for chunk in self.chunks)
        owner, heads = model.owner_of(layer), model.heads_of(model.attention_of(layer))
        shape = (1, heads.kv_heads, columns, heads.head_dim)
        key: Array = np.zeros(shape, attention.dtype)
        value: Array = np.zeros(shape, attention.dtype)
        if owner != layer:
            key, value = self.kept[owner]
        for chunk in self.chunks:
            tensors = chunk.tensors | {"past_key": key, "past_value": value}
            if owner != layer:
                tensors |= {"key": _fresh(key, chunk), "value": _fresh(value, chunk)}
            outputs = attention.run(model.attention_layers.index(layer), len(chunk.tokens), tensors, chunk.start)
            chunk.tensors["attended"] = outputs["attended"]
            if "key_codes" in outputs:
                fresh = slice(chunk.start, chunk.start + len(chunk.tokens))
                for cache, codes in ((key, outputs["key_codes"]), (value, outputs["value_codes"])):
                    cache[0, :, fresh] = codes.reshape(-1, model.kv_heads, model.head_dim).swapaxes(0, 1)
            elif owner == layer:
                key, value = outputs["present_key"], outputs["present_value"]
        if layer in model.shared_layers:
            self.kept[layer] = key, value
        return key, value

    def logits(self) -> Float32:
        """Of every token [tokens, vocab], once all parts have run."""
        return np.concatenate([chunk.tensors["logits"][0] for chunk in self.chunks]).astype(np.float32, copy=False)


def _fresh(cache: Array, chunk: Chunk) -> Array:
    """Columns of a pass [1, rows, K * D] of a cache that is complete."""
    columns = cache[0, :, chunk.start : chunk.start + len(chunk.tokens)].swapaxes(0, 1)
    return np.ascontiguousarray(columns).reshape(1, len(chunk.tokens), -1)


def first_tensors(manifest: Manifest, chunk: Chunk) -> dict[str, Array]:
    """Ids [1, rows] of a pass without adapters and images."""
    rows = len(chunk.tokens)
    tensors: dict[str, Array] = {"input_ids": np.array([chunk.tokens], np.int32), **no_adapters(manifest.lora, rows)}
    if manifest.vision is not None:
        for name in (EMBEDS, *map(deepstack_name, range(manifest.vision.deepstack))):
            tensors[name] = np.zeros((1, rows, manifest.model.hidden), np.float32)
        tensors[EMBEDDED] = np.zeros((1, rows, 1), np.float32)
    return tensors


def rotation_rows(rope: RopeSpec | None, chunk: Chunk) -> dict[str, Array]:
    """[1, 1, rows, rotary_dim / 2] of cos and sin, [1, rows, 1] of what queries are multiplied with; none for a layer
    that does not turn."""
    if rope is None:
        return {}
    positions = chunk.start + np.arange(len(chunk.tokens))
    angles = positions[:, None] * np.array(rope.inverse_frequencies)
    return {
        GAIN: rope.gains(positions)[None, :, None],
        "position_ids_cos": (np.cos(angles) * rope.factor)[None, None].astype(np.float32),
        "position_ids_sin": (np.sin(angles) * rope.factor)[None, None].astype(np.float32),
    }


def segment_logits(
    folder: Path,
    manifest: Manifest,
    texts: Sequence[Sequence[int]],
    rows: int,
    attention: AttentionGraphs | None = None,
) -> Float32:
    """Logits [all tokens, vocab] of texts in passes of `rows`. attention: None = the bundle's own."""
    sequences = [SegmentedSequence.of(manifest, tokens, rows) for tokens in texts]
    attention = attention or AttentionGraphs.of(folder, manifest)
    recurrence = recurrence_of(folder, manifest)
    for layer, spec in enumerate(linear_graphs(manifest)):
        session = open_session(folder / spec.file)
        for sequence in sequences:
            sequence.run_linear(spec, session)
            if spec.part < spec.parts:
                sequence.mix(layer, attention, recurrence)
    return np.concatenate([sequence.logits() for sequence in sequences])


def record_caches(
    folder: Path,
    manifest: Manifest,
    texts: Sequence[Sequence[int]],
    attention: AttentionGraphs,
    record: Record,
) -> None:
    """Hand the keys and values of texts to `record`, each text in one pass. Layers without them are not counted."""
    sequences = [SegmentedSequence.of(manifest, tokens, len(tokens)) for tokens in texts]
    recurrence = recurrence_of(folder, manifest)
    for layer, spec in enumerate(linear_graphs(manifest)[:-1]):
        session = open_session(folder / spec.file)
        for sequence in sequences:
            sequence.run_linear(spec, session)
            caches = sequence.mix(layer, attention, recurrence)
            if caches is not None:
                record(manifest.model.attention_layers.index(layer), *caches)


def _run(spec: GraphSpec, session: Session, tensors: Mapping[str, Array]) -> dict[str, Array]:
    names = [tensor.name for tensor in spec.outputs]
    outputs = session.run(names, {tensor.name: tensors[tensor.name] for tensor in spec.inputs})
    return dict(zip(names, outputs, strict=True))
