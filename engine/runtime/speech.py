"""Runs a Whisper: the encoder for a window of sound, then the decoder for the tokens of several texts side by side.
Each text has a slot: what it has heard, and the keys and values of its tokens. A decode runs the slots from the first
to the last that are used, so that no cache is copied; what the others compute comes to nothing, and what is written of
them lies behind what they keep. The graph writes new keys and values into the caches; `keep` says that they count.
Graphs that are cut as Qualcomm AI Hub cuts them run one token of one text, which has two sets of caches. A run reads
one and writes the other, in which everything has moved to the left by one place; `keep` says that it counts. Shapes: S
= slots, B = of them in a step, N = tokens of each, H = heads, D = head size, T = positions of the encoder, P = places
of a cache, A = heads whose attention follows the speech, V = vocabulary."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import GraphKind, Manifest, TensorSpec
from engine.bundle.speech import (
    ALIGNMENT,
    FEATURES,
    LAST_PLACES,
    POSITIONS,
    TOTAL,
    cross_name,
    is_cross,
    self_name,
    speech_of,
    twin_of,
)
from engine.bundle.tensors import FLOATS, IDS, LOGITS, MASK, Array, encoding_of
from engine.bundle.variant import ShapeTable
from engine.runtime.buffers import blank
from engine.runtime.interface import Indices, Logits, PackedBatch, PackedSegment, Runtime
from engine.runtime.sessions import Binding, Provider, bind_all, load_sessions


class HearingRuntime(Runtime):
    """`_cross`: keys and values of what was heard, by name, each [slots, ...]; whoever inherits fills it.
    slots: texts that may run at once. BundleError when a graph cannot be loaded."""

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, slots: int, provider: Provider) -> None:
        super().__init__(shapes, provider.device)
        sessions = load_sessions(folder, manifest, provider)
        self._sessions = {graph.kind: sessions[graph.name] for graph in manifest.graphs}
        self._vocab = manifest.model.vocab
        self._cross: dict[str, Array] = {}
        self._heard = [b""] * slots
        self._rows: dict[int, tuple[int, int, int]] = {}  # of the last step: where each row has written

    def non_finite_rows(self, rows: Indices) -> Indices:
        """Rows whose new keys or values hold infinity or NaN."""
        found = [row for row in rows.tolist() if row in self._rows and not self._is_sound(*self._rows[row])]
        return np.array(found, np.int64)

    @abstractmethod
    def _is_sound(self, slot: int, which: int, place: int) -> bool:
        """Whether the new keys and values of a row, which `_rows` says where to find, are finite."""

    def _bind(self, kind: GraphKind, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Binding:
        return bind_all(kind.value, self._sessions[kind], inputs, outputs)

    def _hear(self, segment: PackedSegment) -> int:
        """The slot of a text, which has heard its audio: copied where another slot has heard the same."""
        slot = segment.blocks[0]
        if self._heard[slot] != segment.state_key or not segment.state_key:
            others = [other for other, heard in enumerate(self._heard) if heard and heard == segment.state_key]
            self._heard[slot] = b""
            if others:
                for array in self._cross.values():
                    array[slot] = array[others[0]]
            else:
                self._encode(slot, segment.audio)
            self._heard[slot] = segment.state_key
            self._parts.mark("encoder")
        return slot

    @abstractmethod
    def _encode(self, slot: int, audio: bytes) -> None:
        """Fill a slot's part of `_cross` from little-endian float32 frames. StepFailed."""


Float32 = NDArray[np.float32]
HIDDEN = FLOATS["float32"]


@dataclass(frozen=True, slots=True)
class _Step:
    """A bound decoder: of slots `first` to `first` + B - 1, with N tokens each."""

    first: int
    inputs: dict[str, Array]
    logits: Float32
    binding: Binding


class SpeechRuntime(HearingRuntime):
    """For graphs of several texts. `_rows`: slot, 0, place."""

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, slots: int, provider: Provider) -> None:
        super().__init__(folder, manifest, shapes, slots, provider)
        spec, model = speech_of(manifest), manifest.model
        self._spec, self._places = spec, manifest.max_context
        lead = (slots, model.kv_heads)
        for layer in range(model.layers):
            self._cross[cross_name("k", layer)] = np.zeros((*lead, model.head_dim, spec.positions), np.float32)
            self._cross[cross_name("v", layer)] = np.zeros((*lead, spec.positions, model.head_dim), np.float32)
        shape = (model.layers, *lead, self._places, model.head_dim)
        self._past = {side: np.zeros(shape, np.float32) for side in ("k", "v")}
        self._kept = np.zeros(slots, np.int32)  # places of each slot that count
        self._decode: _Step | None = None  # of the slots that the last decode ran

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [texts, V], or of a text that is aligned its attention [1, tokens * T]. StepFailed."""
        self._parts.begin()
        self._rows = {}
        if any(segment.count > 1 or segment.past == 0 for segment in batch.segments):
            (segment,) = batch.segments
            return self._run_prompt(batch, segment)
        return self._run_decodes(batch)

    def _is_sound(self, slot: int, which: int, place: int) -> bool:
        return all(np.isfinite(array[:, slot, :, place]).all() for array in self._past.values())

    def keep(self, rows: Indices, slots: Indices) -> None:
        """The keys and values of `rows` count from now on. They lie in the places that `slots` number, all in turn."""
        for row, place in zip(rows.tolist(), slots.tolist(), strict=True):
            if row in self._rows:  # else it was aligned
                slot, _, own = self._rows[row]
                assert (slot, own) == divmod(place, self._places)
                self._kept[slot] = own + 1

    def close(self) -> None:
        self._decode = None
        self._sessions.clear()

    def _encode(self, slot: int, audio: bytes) -> None:
        features = np.frombuffer(audio, "<f4").reshape(1, self._spec.mels, self._spec.frames)
        outputs = {name: array[slot : slot + 1] for name, array in self._cross.items()}
        self._bind(GraphKind.SPEECH_ENCODER, {FEATURES: np.ascontiguousarray(features)}, outputs).run()

    def _run_prompt(self, batch: PackedBatch, segment: PackedSegment) -> Logits:
        slot = self._hear(segment)
        ids = batch.input_ids[segment.start : segment.end]
        if segment.aligns:
            return self._align(slot, ids)
        step = self._bound(slot, 1, segment.count)
        step.inputs[IDS][0], step.inputs[POSITIONS][0] = ids, batch.positions[segment.start : segment.end]
        self._run(step, np.array([segment.past + segment.count - 1]))
        self._rows = {segment.start + index: (slot, 0, segment.past + index) for index in range(segment.count)}
        self._parts.mark("prompt")
        return Logits.of(step.logits[:, 0])

    def _run_decodes(self, batch: PackedBatch) -> Logits:
        slots = [segment.blocks[0] for segment in batch.segments]
        first, count = min(slots), max(slots) - min(slots) + 1
        step = self._decode
        if step is None or (step.first, len(step.logits)) != (first, count):
            step = self._decode = self._bound(first, count, 1)
        last = np.minimum(self._kept[first : first + count], self._places - 1)  # of the others, where nothing counts
        for segment, slot in zip(batch.segments, slots, strict=True):
            step.inputs[IDS][slot - first] = batch.input_ids[segment.start]
            step.inputs[POSITIONS][slot - first] = batch.positions[segment.start]
            last[slot - first] = segment.past
            self._rows[segment.start] = (slot, 0, segment.past)
        self._run(step, last)
        self._parts.mark("decodes")
        return Logits.of(step.logits[[slot - first for slot in slots], 0])

    def _bound(self, first: int, count: int, tokens: int) -> _Step:
        """The decoder for so many slots from `first` on. Their caches are bound where they lie."""
        ids = {name: np.zeros((count, tokens), np.int32) for name in (IDS, POSITIONS)}
        inputs: dict[str, Array] = {**ids, LAST_PLACES: np.zeros(count, np.int32), TOTAL: np.zeros((), np.int32)}
        heard = {name: array[first : first + count] for name, array in self._cross.items()}
        places = [(side, layer) for side in self._past for layer in range(len(self._past[side]))]
        past, present = (
            {self_name(side, layer, way): self._past[side][layer, first : first + count] for side, layer in places}
            for way in ("in", "out")
        )
        logits = np.empty((count, 1, self._vocab), np.float32)
        binding = self._bind(GraphKind.SPEECH_DECODER, inputs | heard | past, {**present, LOGITS: logits})
        return _Step(first, inputs, logits, binding)

    @staticmethod
    def _run(step: _Step, last: Indices) -> None:
        """last: the place of each text's last token."""
        step.inputs[LAST_PLACES][:] = last
        step.inputs[TOTAL][...] = last.max() + 1
        step.binding.run()

    def _align(self, slot: int, ids: Array) -> Logits:
        """How far each token looks at each position, by the heads that follow the speech [1, A * N * T]."""
        count = len(ids)
        behind = np.triu(np.full((count, count), HIDDEN, np.float32), 1)  # each token sees itself and those before
        scores = np.empty((1, len(self._spec.alignment), count, self._spec.positions), np.float32)
        inputs: dict[str, Array] = {IDS: np.array(ids[None], np.int32), MASK: behind[None, None]}
        inputs[POSITIONS] = np.arange(count, dtype=np.int32)[None]
        held = {name: array[slot : slot + 1] for name, array in self._cross.items()}
        self._bind(GraphKind.SPEECH_ALIGNMENT, inputs | held, {ALIGNMENT: scores}).run()
        self._parts.mark("alignment")
        return Logits.of(scores.reshape(1, -1))


UNSEEN = -100.0  # AI Hub's mask of a place that is not seen


class NpuSpeechRuntime(HearingRuntime):
    """For graphs of one token. `_rows`: slot, set of caches, places from the right end."""

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, slots: int, provider: Provider) -> None:
        super().__init__(folder, manifest, shapes, slots, provider)
        graphs = {graph.kind: graph for graph in manifest.graphs}
        decoder = graphs[GraphKind.SPEECH_DECODER]
        self._given = graphs[GraphKind.SPEECH_ENCODER].outputs
        self._features = graphs[GraphKind.SPEECH_ENCODER].inputs[0]
        self._taken = {tensor.name: tensor for tensor in decoder.inputs}
        self._result = next(tensor for tensor in decoder.outputs if tensor.name == LOGITS)
        self._cross |= {name: _untouched(tensor, slots) for name, tensor in self._taken.items() if is_cross(name)}
        self._caches = {tensor.name: twin_of(tensor.name) for tensor in decoder.inputs if twin_of(tensor.name)}
        self._past = [{name: _untouched(self._taken[name], slots) for name in self._caches} for _ in range(2)]
        self._rows_in = {name: blank(self._taken[name]) for name in (IDS, MASK, POSITIONS)}
        self._codes = encoding_of(self._taken[MASK]).encode(np.array([UNSEEN, 0.0]))
        self._logits = blank(self._result)
        self._counts = [0] * slots  # which set of caches counts, of each slot
        self._bound: dict[tuple[int, int], Binding] = {}

    def run(self, batch: PackedBatch) -> Logits:
        self._parts.begin()
        self._rows = {}
        found = np.empty((len(batch.segments), self._vocab), np.float32)
        for text, segment in enumerate(batch.segments):
            found[text] = self._read(segment, batch)
        self._parts.mark("decoder")
        return Logits.of(found)

    def keep(self, rows: Indices, slots: Indices) -> None:
        """The caches that the runs of `rows` have written count from now on; they lie in the slots of their texts."""
        for row in rows.tolist():
            slot, other, _ = self._rows[row]
            self._counts[slot] = other

    def close(self) -> None:
        self._bound.clear()
        self._sessions.clear()

    def _is_sound(self, slot: int, which: int, place: int) -> bool:
        arrays = [(name, array[slot]) for name, array in self._past[which].items() if array.dtype.kind == "f"]
        news = [array[..., -1 - place] if name.startswith("k") else array[..., -1 - place, :] for name, array in arrays]
        return all(np.isfinite(new).all() for new in news)

    def _encode(self, slot: int, audio: bytes) -> None:
        frames = np.frombuffer(audio, "<f4").astype(np.float64).reshape([int(size) for size in self._features.shape])
        outputs: dict[str, Array] = {}
        for given in self._given:
            same = _form(given) == _form(self._taken[given.name])
            outputs[given.name] = self._cross[given.name][slot] if same else blank(given)
        encoded = np.ascontiguousarray(encoding_of(self._features).encode(frames))
        self._bind(GraphKind.SPEECH_ENCODER, {FEATURES: encoded}, outputs).run()
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
                array[slot] = self._taken[name].zero_point or 0
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
            self._bound[slot, which] = self._bind(GraphKind.SPEECH_DECODER, inputs, outputs)
        return self._bound[slot, which]


def _form(tensor: TensorSpec) -> tuple[str, float | None, int | None]:
    return tensor.dtype, tensor.scale, tensor.zero_point


def _untouched(tensor: TensorSpec, slots: int) -> Array:
    """Of any content, which is written before it is read: memory that only the slots in use take."""
    return np.zeros([slots, *(int(size) for size in tensor.shape)], tensor.dtype)
