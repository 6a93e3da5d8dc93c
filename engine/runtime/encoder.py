"""Runs an encoder: texts side by side in the rows of a step, each seeing itself alone, one vector or score a text.
Shapes: N = rows of a step, T = rows of one text, H = hidden size, X = numbers of a vector, or 1 score."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoder import HIDDEN, POSITIONS, TYPES, encoder_of, pair_types, score_head_floats
from engine.bundle.manifest import GraphSpec, Manifest
from engine.bundle.specs import PoolingKind, PoolingSpec
from engine.bundle.tensors import Array, encoding_of
from engine.bundle.variant import StepShape, shape_table
from engine.bundle.weight_files import read_floats
from engine.runtime.buffers import Arena, RotationTables, RowInputs, blank
from engine.runtime.interface import Indices, Logits, PackedBatch, RowLayout, Runtime
from engine.runtime.onnx_library import ort
from engine.runtime.sessions import Binding, Provider, bind_all, load_sessions


def pack_texts(texts: Sequence[Sequence[int]], rows: int) -> PackedBatch:
    """Whole texts in a step of so many rows; each asks for an output, and its rows see each other both ways."""
    layout = RowLayout(StepShape(rows, 0), sum(map(len, texts)))
    for ids in texts:
        layout.add(tuple(ids), 0, logits=(len(ids) - 1,), block_rows=len(ids))
    return layout.batch(block_size=1)


Float32 = NDArray[np.float32]


def pooled(hidden: Float32, kind: PoolingKind) -> Float32:
    """hidden [T, H], the rows of one text -> [H], of whatever length."""
    if kind is PoolingKind.MEAN:
        return np.asarray(hidden.mean(axis=0, dtype=np.float64), np.float32)
    row: Float32 = hidden[0 if kind is PoolingKind.CLS else -1]
    return row


@dataclass(frozen=True, slots=True)
class _Variant:
    """The graph of one number of rows. inputs: beside those of `rows`."""

    graph: GraphSpec
    binding: Binding
    rows: RowInputs
    inputs: dict[str, Array]
    output: Array


class EncoderRuntime(Runtime):
    """For any provider. Nothing is kept from step to step. Raises BundleError when a graph cannot be loaded."""

    def __init__(self, folder: Path, manifest: Manifest, provider: Provider) -> None:
        super().__init__(shape_table(manifest, 0), provider.device)
        pair = manifest.rerank
        self._middle_ids = pair.middle_ids if pair is not None and pair.has_types else ()
        self._offset = encoder_of(manifest).position_offset
        self._read = _reader(folder, manifest)
        self._sessions = load_sessions(folder, manifest, provider)
        self._variants = {graph.rows: _bound(manifest, graph, self._sessions[graph.name]) for graph in manifest.graphs}
        self._rotary = RotationTables(manifest.model)

    def run(self, batch: PackedBatch) -> Logits:
        """The vector or score of each text [texts, X]. StepFailed when onnxruntime raises."""
        hidden = self.hidden(batch)
        return Logits.of(np.stack([self._read(hidden[text.start : text.end]) for text in batch.segments]))

    def hidden(self, batch: PackedBatch) -> Float32:
        """Hidden states [N, H]. StepFailed when onnxruntime raises."""
        variant = self._variants[batch.shape.rows]
        self._parts.begin()
        self._fill(variant, batch)
        self._parts.mark("inputs")
        variant.binding.run()
        self._parts.mark("layers")
        return encoding_of(variant.graph.outputs[0]).decode(variant.output[0])

    def non_finite_rows(self, rows: Indices) -> Indices:
        """None: a row is seen by its own text alone, whose vector shows it."""
        return rows[:0]

    def keep(self, rows: Indices, slots: Indices) -> None:
        """Nothing: there is no cache."""

    def close(self) -> None:
        self._variants.clear()
        self._sessions.clear()

    def _fill(self, variant: _Variant, batch: PackedBatch) -> None:
        inputs = variant.inputs
        variant.rows.fill(batch, self._rotary)
        if TYPES in inputs:
            inputs[TYPES][...] = 0
        if self._middle_ids:
            for text in batch.segments:
                ids = tuple(batch.input_ids[text.start : text.end].tolist())
                inputs[TYPES][0, text.start : text.end] = pair_types(ids, self._middle_ids) or 0
        if POSITIONS in inputs:
            inputs[POSITIONS][0] = batch.positions + self._offset


def _reader(folder: Path, manifest: Manifest) -> Callable[[Float32], Float32]:
    """How hidden states [T, H] of a text become its vector [X] or score [1]. BundleError when a file cannot be read."""
    spec, pooling = encoder_of(manifest), manifest.pooling
    if spec.score_head:
        return _score_head(folder, manifest, spec.score_head)
    assert pooling is not None, "the bundle was checked"
    if spec.projection:
        return _projection(folder, manifest, spec.projection, pooling)
    return partial(pooled, kind=pooling.kind)


def _score_head(folder: Path, manifest: Manifest, name: str) -> Callable[[Float32], Float32]:
    """A layer [H, H] with bias [H], tanh, then one [H] with bias [1]. In double precision, rounded once."""
    size = manifest.model.hidden
    numbers = read_floats(folder, manifest, name, (score_head_floats(size),)).astype(np.float64)
    dense, dense_bias, weight, bias = np.split(numbers, np.cumsum([size * size, size, size]))
    square = dense.reshape(size, size)

    def score(hidden: Float32) -> Float32:
        return np.asarray(np.tanh(square @ hidden[0] + dense_bias) @ weight + bias, np.float32)

    return score


def _projection(folder: Path, manifest: Manifest, name: str, pooling: PoolingSpec) -> Callable[[Float32], Float32]:
    """A pooled vector [H] times [X, H], plus [X]. In double precision, rounded once."""
    size = manifest.model.hidden
    numbers = read_floats(folder, manifest, name, (pooling.dimensions * (size + 1),)).astype(np.float64)
    weight, bias = numbers[: pooling.dimensions * size].reshape(-1, size), numbers[pooling.dimensions * size :]

    def project(hidden: Float32) -> Float32:
        return np.asarray(weight @ pooled(hidden, pooling.kind) + bias, np.float32)

    return project


def _bound(manifest: Manifest, graph: GraphSpec, session: ort.InferenceSession) -> _Variant:
    assert graph.rows is not None, "shapes are fixed"
    rows = RowInputs(Arena(), manifest, StepShape(graph.rows, 0), {})
    found = {tensor.name: (rows.buffer(tensor), tensor) for tensor in graph.inputs}
    inputs = {name: blank(tensor) for name, (array, tensor) in found.items() if array is None}
    output = blank(graph.outputs[0])
    taken = inputs | {name: array for name, (array, _) in found.items() if array is not None}
    return _Variant(graph, bind_all(graph.name, session, taken, {HIDDEN: output}), rows, inputs, output)
