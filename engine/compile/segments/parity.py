"""A segmented bundle in the plainest way: part after part over whole texts, with one part in memory at a time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.kv_scales import ROUNDED, read_kv_scales
from engine.bundle.lora_tensors import no_adapters
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.segments import ATTENTION, ATTENTION_CHUNK, IN_PLACE_ROWS
from engine.compile.parity import Session, open_session
from engine.graphs.layout import linear_graphs

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]


Record = Callable[[int, Array, Array], None]  # layer, keys and values [1, K, columns, D] of a text


@dataclass(frozen=True, slots=True)
class AttentionGraphs:
    """The attention graphs by name, opened. dtype: of the caches. scales [L, 2, K, D]: of int8 ones."""

    graphs: Mapping[str, tuple[GraphSpec, Session]]
    dtype: str
    scales: Float32 | None = None

    @classmethod
    def of(cls, folder: Path, manifest: Manifest) -> "AttentionGraphs":
        """Those of a bundle."""
        found = [graph for graph in manifest.graphs if graph.kind is GraphKind.ATTENTION]
        scales = read_kv_scales(folder, manifest) if manifest.kv_dtype == ROUNDED else None
        return cls({spec.name: (spec, open_session(folder / spec.file)) for spec in found}, manifest.kv_dtype, scales)

    def run(self, layer: int, rows: int, tensors: Mapping[str, Array], past: int) -> dict[str, Array]:
        """What the graph for so many rows gives."""
        name = ATTENTION_CHUNK if rows > IN_PLACE_ROWS and ATTENTION_CHUNK in self.graphs else ATTENTION
        feeds = dict(tensors)
        feeds["seqlens_k"] = np.array([past + rows - 1], np.int32)
        feeds["total_sequence_length"] = np.array(past + rows, np.int32)
        if self.scales is not None:
            feeds["key_scale"], feeds["value_scale"] = self.scales[layer][:, None, :, None]
        return _run(*self.graphs[name], feeds)


@dataclass(slots=True)
class Chunk:
    """Rows of one pass. start: tokens of the text before it. tensors: what the parts have given so far, by name."""

    tokens: Sequence[int]
    start: int
    tensors: dict[str, Array] = field(default_factory=dict)


@dataclass(slots=True)
class SegmentedSequence:
    """One text, cut into passes, and the cache of one layer at a time: keys and values [1, K, columns, D]."""

    manifest: Manifest
    chunks: list[Chunk]

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
            outputs = _run(spec, session, chunk.tensors)
            chunk.tensors |= outputs
            if "hidden_out" in outputs:
                chunk.tensors["hidden_in"] = outputs["hidden_out"]

    def attend(self, layer: int, attention: AttentionGraphs) -> tuple[Array, Array]:
        """One layer's attention, pass after pass over the growing cache, which is given back: keys, values."""
        model, columns = self.manifest.model, sum(len(chunk.tokens) for chunk in self.chunks)
        shape = (1, model.kv_heads, columns, model.head_dim)
        key: Array = np.zeros(shape, attention.dtype)
        value: Array = np.zeros(shape, attention.dtype)
        for chunk in self.chunks:
            tensors = chunk.tensors | {"past_key": key, "past_value": value}
            outputs = attention.run(layer, len(chunk.tokens), tensors, chunk.start)
            chunk.tensors["attended"] = outputs["attended"]
            if "key_codes" in outputs:
                fresh = slice(chunk.start, chunk.start + len(chunk.tokens))
                for cache, codes in ((key, outputs["key_codes"]), (value, outputs["value_codes"])):
                    cache[0, :, fresh] = codes.reshape(-1, model.kv_heads, model.head_dim).swapaxes(0, 1)
            else:
                key, value = outputs["present_key"], outputs["present_value"]
        return key, value

    def logits(self) -> Float32:
        """Of every token [tokens, vocab], once all parts have run."""
        return np.concatenate([chunk.tensors["logits"][0] for chunk in self.chunks]).astype(np.float32, copy=False)


def first_tensors(manifest: Manifest, chunk: Chunk) -> dict[str, Array]:
    """Ids [1, rows] and rotation [1, 1, rows, rotary_dim / 2] of a pass without adapters."""
    rope = manifest.model.rope
    positions = chunk.start + np.arange(len(chunk.tokens))
    angles = positions[:, None] * np.array(rope.inverse_frequencies)
    return {
        "input_ids": np.array([chunk.tokens], np.int32),
        "position_ids_cos": (np.cos(angles) * rope.factor)[None, None].astype(np.float32),
        "position_ids_sin": (np.sin(angles) * rope.factor)[None, None].astype(np.float32),
        **no_adapters(manifest.lora, len(positions)),
    }


def storage_logits(
    folder: Path,
    manifest: Manifest,
    texts: Sequence[Sequence[int]],
    rows: int,
    least_rows: int,
    attention: AttentionGraphs | None = None,
) -> Float32:
    """Logits [all tokens, vocab] of texts in passes of `rows`, through the storage for passes of `least_rows`.

    attention: None = the bundle's own.
    """
    sequences = [SegmentedSequence.of(manifest, tokens, rows) for tokens in texts]
    attention = attention or AttentionGraphs.of(folder, manifest)
    for layer, spec in enumerate(linear_graphs(manifest, least_rows)):
        session = open_session(folder / spec.file)
        for sequence in sequences:
            sequence.run_linear(spec, session)
            if spec.part < spec.parts:
                sequence.attend(layer, attention)
    return np.concatenate([sequence.logits() for sequence in sequences])


def record_caches(
    folder: Path,
    manifest: Manifest,
    texts: Sequence[Sequence[int]],
    least_rows: int,
    attention: AttentionGraphs,
    record: Record,
) -> None:
    """Hand the keys and values of texts to `record`, layer by layer, each text in one pass."""
    sequences = [SegmentedSequence.of(manifest, tokens, len(tokens)) for tokens in texts]
    for layer, spec in enumerate(linear_graphs(manifest, least_rows)[:-1]):
        session = open_session(folder / spec.file)
        for sequence in sequences:
            sequence.run_linear(spec, session)
            record(layer, *sequence.attend(layer, attention))


def _run(spec: GraphSpec, session: Session, tensors: Mapping[str, Array]) -> dict[str, Array]:
    names = [tensor.name for tensor in spec.outputs]
    outputs = session.run(names, {tensor.name: tensors[tensor.name] for tensor in spec.inputs})
    return dict(zip(names, outputs, strict=True))
