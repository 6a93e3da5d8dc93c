"""Runs a Whisper whose graphs are cut as Qualcomm AI Hub cuts them: a run is one token of one text.

Each text has a slot: what it has heard, and two sets of caches of its tokens. A run reads one set and writes the other,
in which everything has moved to the left by one place; `keep` says that the other one counts.
Shapes: S slots, H heads, D head size, T positions of the encoder, P places of a cache, V vocabulary.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, Manifest, TensorSpec
from engine.bundle.speech import FEATURES, POSITIONS, is_cross, speech_of, twin_of
from engine.bundle.tensors import IDS, LOGITS, MASK, Array, encoding_of
from engine.bundle.variant import ShapeTable
from engine.runtime.hearing import HearingRuntime
from engine.runtime.interface import Indices, Logits, PackedBatch, PackedSegment
from engine.runtime.sessions import Binding, Provider, bind_all, load_sessions

HIDDEN = -100.0  # AI Hub's mask of a place that is not seen


class NpuSpeechRuntime(HearingRuntime):
    """Implements `Runtime`. slots: texts that may run at once. BundleError when a graph cannot be loaded."""

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, slots: int, provider: Provider) -> None:
        super().__init__(shapes, provider.device, slots)
        graphs = {graph.kind: graph for graph in manifest.graphs}
        decoder = graphs[GraphKind.SPEECH_DECODER]
        self._given = graphs[GraphKind.SPEECH_ENCODER].outputs
        self._features = graphs[GraphKind.SPEECH_ENCODER].inputs[0]
        self._taken = {tensor.name: tensor for tensor in decoder.inputs}
        self._result = next(tensor for tensor in decoder.outputs if tensor.name == LOGITS)
        self._vocab, self._frames = manifest.model.vocab, speech_of(manifest).features
        sessions = load_sessions(folder, manifest, provider)
        self._sessions = {graph.kind: sessions[graph.name] for graph in manifest.graphs}
        cross = {name: tensor for name, tensor in self._taken.items() if is_cross(name)}
        self._cross |= {name: _empty(tensor, slots) for name, tensor in cross.items()}
        self._caches = {tensor.name: twin_of(tensor.name) for tensor in decoder.inputs if twin_of(tensor.name)}
        self._past = [{name: _empty(self._taken[name], slots) for name in self._caches} for _ in range(2)]
        self._rows_in = {name: _empty(self._taken[name]) for name in (IDS, MASK, POSITIONS)}
        self._codes = encoding_of(self._taken[MASK]).encode(np.array([HIDDEN, 0.0]))
        self._logits = _empty(self._result)
        self._counts = [0] * slots  # which set of caches counts, of each slot
        self._bound: dict[tuple[int, int], Binding] = {}
        self._rows: dict[int, tuple[int, int, int]] = {}  # of the last step: slot, set, places from the right end

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [texts, V]. StepFailed."""
        self._parts.begin()
        self._rows = {}
        found = np.empty((len(batch.segments), self._vocab), np.float32)
        for text, segment in enumerate(batch.segments):
            found[text] = self._read(segment, batch)
        self._parts.mark("decoder")
        return Logits.of(found)

    def non_finite_rows(self, rows: Indices) -> Indices:
        """Rows whose new keys or values hold infinity or NaN."""
        return np.array([row for row in rows.tolist() if row in self._rows and not self._is_sound(row)], np.int64)

    def keep(self, rows: Indices, slots: Indices) -> None:
        """The caches that the runs of `rows` have written count from now on; they lie in the slots of their texts."""
        for row in rows.tolist():
            slot, other, _ = self._rows[row]
            self._counts[slot] = other

    def close(self) -> None:
        """Drop bindings, then sessions: a binding must not outlive what it points to."""
        self._bound.clear()
        self._sessions.clear()

    def _is_sound(self, row: int) -> bool:
        slot, which, back = self._rows[row]
        arrays = [(name, array[slot]) for name, array in self._past[which].items() if array.dtype.kind == "f"]
        news = [array[..., -1 - back] if name.startswith("k") else array[..., -1 - back, :] for name, array in arrays]
        return all(np.isfinite(new).all() for new in news)

    def _encode(self, slot: int, audio: bytes) -> None:
        frames = np.frombuffer(audio, "<f4").astype(np.float64).reshape([int(size) for size in self._features.shape])
        outputs: dict[str, Array] = {}
        for given in self._given:
            same = _form(given) == _form(self._taken[given.name])
            outputs[given.name] = self._cross[given.name][slot] if same else _empty(given)
        encoded = np.ascontiguousarray(encoding_of(self._features).encode(frames))
        kind = GraphKind.SPEECH_ENCODER
        bind_all(kind.value, self._sessions[kind], {FEATURES: encoded}, outputs).run()
        for given in self._given:
            taken = self._taken[given.name]
            if _form(given) != _form(taken):
                numbers = encoding_of(given).decode(outputs[given.name]).astype(np.float64)
                self._cross[given.name][slot] = encoding_of(taken).encode(numbers)

    def _read(self, segment: PackedSegment, batch: PackedBatch) -> NDArray[np.float32]:
        """Logits [V] behind the last token of a segment; one that begins a text hears its audio first."""
        slot = segment.blocks[0]
        if segment.past == 0:
            self._hear(segment)
            self._counts[slot] = 0
            for name, array in self._past[0].items():
                array[slot] = _zero(self._taken[name])
        which = self._counts[slot]
        for row in range(segment.start, segment.end):
            self._rows_in[IDS][...] = batch.input_ids[row]
            self._rows_in[POSITIONS][...] = batch.positions[row]
            mask, seen = self._rows_in[MASK].reshape(-1), segment.past + row - segment.start + 1
            mask[:-seen], mask[-seen:] = self._codes[0], self._codes[1]
            self._binding(slot, which).run()
            which = 1 - which
        for row in range(segment.start, segment.end):
            self._rows[row] = (slot, which, segment.end - 1 - row)
        return encoding_of(self._result).decode(self._logits).reshape(-1)

    def _binding(self, slot: int, which: int) -> Binding:
        """The decoder that reads one set of a slot's caches and writes the other."""
        if (slot, which) not in self._bound:
            old, new = self._past[which], self._past[1 - which]
            inputs = self._rows_in | {name: array[slot] for name, array in (self._cross | old).items()}
            outputs = {LOGITS: self._logits} | {twin: new[name][slot] for name, twin in self._caches.items()}
            kind = GraphKind.SPEECH_DECODER
            self._bound[slot, which] = bind_all(kind.value, self._sessions[kind], inputs, outputs)
        return self._bound[slot, which]


def _form(tensor: TensorSpec) -> tuple[str, float | None, int | None]:
    return tensor.dtype, tensor.scale, tensor.zero_point


def _zero(tensor: TensorSpec) -> Array:
    return encoding_of(tensor).encode(np.zeros(1))


def _empty(tensor: TensorSpec, *lead: int) -> Array:
    """Nothing yet, in the tensor's shape behind `lead`."""
    return np.zeros([*lead, *(int(size) for size in tensor.shape)], tensor.dtype)
