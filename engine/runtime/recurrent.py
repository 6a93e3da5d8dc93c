"""Runs the recurrent layers of a segmented bundle: one graph for all of them, bound to the states of sequences.
What recurrent layers carry from token to token, for each sequence, and snapshots of it at borders of prefixes.
A state that counts is never written: a step writes another one, which takes its place when all rows of the sequence are
kept. So a step that fails has changed nothing, and a snapshot is no copy but a state that is not used again for others.
Legend: R = recurrent layers, C = channels, W = kernel, H = value heads, K = key size, V = value size."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.bundle.segments import BETA, CONV_IN, CONV_WEIGHT, DECAY, MEMORY, MEMORY_OUT, OUT, RECURRENT, TAIL, TAIL_OUT
from engine.bundle.specs import RecurrentSpec
from engine.bundle.tensors import Array
from engine.errors import StepFailed
from engine.runtime.interface import PackedBatch, PackedSegment
from engine.runtime.linear import RowBuffers
from engine.runtime.onnx_library import ort
from engine.runtime.sessions import Binding, bind_all

KEPT_PLACES = 2  # rows of a step that a state stays bound to as what is written


class RecurrentState:
    """After `tokens` tokens: tails [R, 1, C, W - 1] of convolutions, memories [R, 1, H, K, V].
    bound: graphs bound to this memory as what they write, one for each layer, by rows and by the id() of the state that
    is read, which is kept alive."""

    def __init__(self, spec: RecurrentSpec, tokens: int = 0) -> None:
        lead = (len(spec.layers), 1)
        make = np.empty if tokens else np.zeros
        self.tails: Array = make((*lead, *spec.tail_shape), np.float32)
        self.memories: Array = make((*lead, *spec.memory_shape), np.float32)
        self.tokens = tokens
        self.is_shared = tokens == 0  # read by others, so its memory is not used again
        self.bound: dict[tuple[int, ...], tuple[RecurrentState, list[Binding]]] = {}


@dataclass(frozen=True, slots=True)
class StateStep:
    """`count` rows of a segment from its row `start` on, which lead from one state to another."""

    start: int
    count: int
    source: RecurrentState
    target: RecurrentState


@dataclass(slots=True)
class _Advance:
    """What a step does to one sequence. kept: how many of its rows, from the first, count."""

    segment: PackedSegment
    steps: list[StateStep] = field(default_factory=list)
    kept: int = 0


class RecurrentStates:
    """Sole owner of the states of sequences, and of snapshots by key."""

    def __init__(self, spec: RecurrentSpec) -> None:
        self._spec = spec
        self._empty = RecurrentState(spec)
        self._current: dict[str, RecurrentState] = {}
        self._spare: dict[str, RecurrentState] = {}
        self._snapshots: dict[bytes, RecurrentState] = {}
        self._last: list[_Advance] = []

    def begin(self, batch: PackedBatch) -> list[list[StateStep]]:
        """The steps of each segment of a step: one, and one more for each snapshot inside. StepFailed without a state.
        Several steps may begin before one is kept."""
        lost = [step.target for advance in self._last if advance.kept < advance.segment.count for step in advance.steps]
        unread = [state for state in lost if not state.is_shared]  # nobody kept them: they may be written again
        self._last = [_Advance(segment) for segment in batch.segments]
        for advance in self._last:
            self._plan(advance, unread)
        return [advance.steps for advance in self._last]

    def keep(self, rows: Collection[int]) -> None:
        """These rows of the last step count: snapshots among them are taken, sequences with all rows are advanced."""
        for advance in self._last:
            segment, before = advance.segment, advance.kept
            advance.kept += sum(row in rows for row in range(segment.start, segment.end))
            for offset, key in segment.snapshots:
                if before < offset <= advance.kept:
                    state = next(step.target for step in advance.steps if step.start + step.count == offset)
                    state.is_shared = True
                    state.bound.clear()
                    self._snapshots[key] = state
            if before < segment.count == advance.kept:
                self._advance(segment.owner, advance.steps)

    def forget(self, sequences: Collection[str], snapshots: Collection[bytes]) -> None:
        """Give back the memory of sequences that have ended, and of snapshots. Unknown ones are ignored."""
        for owner in sequences:
            for states in (self._current, self._spare):
                if (state := states.pop(owner, None)) is not None:
                    state.bound.clear()
        for key in snapshots:
            self._snapshots.pop(key, None)
        self._last = []

    def _plan(self, advance: _Advance, unread: list[RecurrentState]) -> None:
        segment, source = advance.segment, self._source(advance.segment)
        ends = [offset for offset, _ in segment.snapshots]
        start = 0
        for end in (*ends, segment.count):
            if end == start:
                continue
            target = None if end in ends else self._spare.pop(segment.owner, None)
            target = target or (unread.pop(0) if unread else RecurrentState(self._spec, segment.past + end))
            target.tokens = segment.past + end
            advance.steps.append(StateStep(start, end - start, source, target))
            start, source = end, target

    def _source(self, segment: PackedSegment) -> RecurrentState:
        if not segment.past or not segment.owner:
            return self._empty
        found = self._snapshots.get(segment.state_key) if segment.state_key else self._current.get(segment.owner)
        if found is None or found.tokens != segment.past:
            raise StepFailed(f"{segment.owner} has no state of its first {segment.past} tokens")
        return found

    def _advance(self, owner: str, steps: Sequence[StateStep]) -> None:
        old, new = steps[0].source, steps[-1].target
        self._current[owner] = new
        if old.is_shared:  # what is bound would keep it from being given back
            new.bound.clear()
        else:
            self._spare[owner] = old


STEP_ROWS = (CONV_IN, DECAY, BETA)


class RecurrentLayers:
    """Owns the states. weights: of the convolutions [R, C, W]."""

    def __init__(
        self, spec: RecurrentSpec, session: ort.InferenceSession, rows: RowBuffers, weights: NDArray[np.float32]
    ) -> None:
        self.states = RecurrentStates(spec)
        self._session = session
        self._rows = rows
        self._weights = weights[:, :, None]
        self._has_memory = spec.has_memory

    def bound(
        self, segments: Sequence[PackedSegment], steps: Sequence[Sequence[StateStep]], rows: int
    ) -> list[list[Binding]]:
        found = [
            self._bound_step((rows - segment.start - step.start, step.count), step)
            for segment, own in zip(segments, steps, strict=True)
            for step in own
        ]
        return [[layers[layer] for layers in found] for layer in range(len(self._weights))]

    def _bound_step(self, place: tuple[int, int], step: StateStep) -> list[Binding]:
        key, bound = (*place, id(step.source)), step.target.bound
        if key not in bound:
            bound[key] = step.source, [self._bind(place, layer, step) for layer in range(len(self._weights))]
            if len(bound) > KEPT_PLACES:
                del bound[next(iter(bound))]
        return bound[key][1]

    def _bind(self, place: tuple[int, int], layer: int, step: StateStep) -> Binding:
        source, target = step.source, step.target
        inputs = {name: self._rows.some(name, *place) for name in (STEP_ROWS if self._has_memory else STEP_ROWS[:1])}
        inputs |= {CONV_WEIGHT: self._weights[layer], TAIL: source.tails[layer]}
        outputs = {OUT: self._rows.some(OUT, *place), TAIL_OUT: target.tails[layer]}
        if self._has_memory:
            inputs[MEMORY], outputs[MEMORY_OUT] = source.memories[layer], target.memories[layer]
        return bind_all(RECURRENT, self._session, inputs, outputs)
