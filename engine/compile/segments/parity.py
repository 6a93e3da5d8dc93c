"""A segmented bundle in the plainest way: part after part over whole texts, with one part in memory at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphSpec, Manifest
from engine.bundle.segments import ATTENTION
from engine.compile.parity import Session, open_session
from engine.graphs.layout import linear_graphs

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]


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

    def attend(self, spec: GraphSpec, session: Session) -> None:
        """One layer's attention, pass after pass over the growing cache."""
        model, columns = self.manifest.model, sum(len(chunk.tokens) for chunk in self.chunks)
        empty: Array = np.zeros((1, model.kv_heads, columns, model.head_dim), np.float32)
        key, value = empty, empty
        for chunk in self.chunks:
            total = chunk.start + len(chunk.tokens)
            lengths = {"seqlens_k": np.array([total - 1], np.int32), "total_sequence_length": np.array(total, np.int32)}
            feeds = chunk.tensors | lengths | {"past_key": key, "past_value": value}
            outputs = _run(spec, session, feeds)
            chunk.tensors["attended"] = outputs["attended"]
            key, value = outputs["present_key"], outputs["present_value"]

    def logits(self) -> Float32:
        """Of every token [tokens, vocab], once all parts have run."""
        return np.concatenate([chunk.tensors["logits"][0] for chunk in self.chunks]).astype(np.float32, copy=False)


def first_tensors(manifest: Manifest, chunk: Chunk) -> dict[str, Array]:
    """Ids [1, rows] and rotation [1, 1, rows, rotary_dim / 2] of a pass."""
    rope = manifest.model.rope
    positions = chunk.start + np.arange(len(chunk.tokens))
    angles = positions[:, None] * np.array(rope.inverse_frequencies)
    return {
        "input_ids": np.array([chunk.tokens], np.int32),
        "position_ids_cos": (np.cos(angles) * rope.factor)[None, None].astype(np.float32),
        "position_ids_sin": (np.sin(angles) * rope.factor)[None, None].astype(np.float32),
    }


def storage_logits(
    folder: Path, manifest: Manifest, texts: Sequence[Sequence[int]], rows: int, least_rows: int
) -> Float32:
    """Logits [all tokens, vocab] of texts in passes of `rows`, through the storage for passes of `least_rows`."""
    sequences = [SegmentedSequence.of(manifest, tokens, rows) for tokens in texts]
    attention = next(graph for graph in manifest.graphs if graph.name == ATTENTION)
    attend = open_session(folder / attention.file)
    for spec in linear_graphs(manifest, least_rows):
        session = open_session(folder / spec.file)
        for sequence in sequences:
            sequence.run_linear(spec, session)
            if spec.part < spec.parts:
                sequence.attend(attention, attend)
    return np.concatenate([sequence.logits() for sequence in sequences])


def _run(spec: GraphSpec, session: Session, tensors: Mapping[str, Array]) -> dict[str, Array]:
    names = [tensor.name for tensor in spec.outputs]
    outputs = session.run(names, {tensor.name: tensors[tensor.name] for tensor in spec.inputs})
    return dict(zip(names, outputs, strict=True))
