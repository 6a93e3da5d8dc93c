"""Which texts of speech share the next step. Each has a slot: the keys and values of what it hears, and of its tokens.

A newcomer takes a slot and a step of its own, in which the encoder hears its audio, unless a slot has heard the same,
and its prompt is read. All texts that run then share steps, a row each. Newcomers come first: the more run
together, the cheaper is each token.
"""

from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b

from engine.bundle.variant import StepShape
from engine.core.plan import Segment, SequenceUpdate, StepPlan, StepResult
from engine.core.planner import Gauges, Planner
from engine.core.policy import CostTable
from engine.core.sequence import Capacity, Sequence, SequenceStatus, append_tokens
from engine.core.speculation import NO_PROPOSALS
from engine.request import FinishReason, Request


class SpeechSlots:
    """Who has which slot, and which audio each has heard last. Slots that are free are kept in order of their use."""

    def __init__(self, count: int) -> None:
        self._free = dict.fromkeys(range(count), b"")  # slot -> audio, the longest unused first
        self._taken: dict[str, tuple[int, bytes]] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    @property
    def has_room(self) -> bool:
        return bool(self._free)

    def take(self, name: str, audio: bytes) -> int:
        """Of those nearest to the taken ones, as a step runs all between, the one that has heard the audio, else the
        longest unused."""
        taken = [slot for slot, _ in self._taken.values()]
        slot = min(self._free, key=lambda slot: (_reach([*taken, slot]), self._free[slot] != audio))
        del self._free[slot]
        self._taken[name] = (slot, audio)
        return slot

    def release(self, name: str, has_heard: bool = True) -> None:
        if name in self._taken:
            slot, audio = self._taken.pop(name)
            self._free[slot] = audio if has_heard else b""


def _reach(slots: list[int]) -> int:
    return max(slots) - min(slots)


class SpeechScheduler(Planner):
    """Implements `Planner`. slots: texts that run at once. places: tokens of one. features: bytes of its audio."""

    def __init__(self, costs: CostTable, slots: int, places: int, features: int) -> None:
        super().__init__(costs, Capacity(places, places), block_size=places)
        self._features = features
        self._count = slots
        self._slots = SpeechSlots(slots)
        self._waiting: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}
        self._arrivals = 0

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> Sequence:
        """Queue a text. ValueError when it brings no audio, or more tokens than there are places."""
        if len(request.audio) != self._features:
            raise ValueError(f"this model writes speech down: {self._features} bytes of audio are wanted with a prompt")
        tokens = [*request.prompt_ids, *emitted]
        if len(tokens) > self.capacity.tokens_per_sequence:
            raise ValueError(f"the prompt has {len(tokens)} tokens, {self.capacity.tokens_per_sequence} is the most")
        sequence = Sequence(request, self._arrivals, seed, tokens, arrived_s=now_s, resumed=len(emitted))
        sequence.keys = [blake2b(request.audio, digest_size=16).digest()]
        self._arrivals += 1
        self._waiting[request.id] = sequence
        return sequence

    def find(self, sequence_id: str) -> Sequence | None:
        return self._waiting.get(sequence_id) or self._running.get(sequence_id)

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._running)

    def sequences(self) -> tuple[Sequence, ...]:
        return (*self._waiting.values(), *self._running.values())

    def plan(
        self, late: Collection[str] = (), proposals: Mapping[str, tuple[int, ...]] = NO_PROPOSALS
    ) -> StepPlan | None:
        """A newcomer's prompt where a slot is free, else a row of every text that runs."""
        if self._waiting and self._slots.has_room:
            sequence = min(self._waiting.values(), key=lambda each: each.rank)
            del self._waiting[sequence.id]
            sequence.blocks = [self._slots.take(sequence.id, sequence.keys[0])]
            sequence.move(SequenceStatus.PREFILL)
            self._running[sequence.id] = sequence
            segments = [self._segment(sequence)]
        else:
            segments = [self._segment(sequence) for sequence in self._running.values()]
        rows = sum(len(segment.tokens) for segment in segments)
        return StepPlan(StepShape(rows, 0), tuple(segments)) if segments else None

    def commit(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Take in the tokens; a text that has ended leaves its slot."""
        updates = []
        for segment in plan.segments:
            sequence = segment.sequence
            if sequence.is_finished:
                continue
            if sequence.status is SequenceStatus.PREFILL:
                sequence.move(SequenceStatus.DECODE)
            sequence.computed += len(segment.tokens)
            sequence.steps += 1
            sequence.step_rows += plan.rows_used
            found = result.tokens[sequence.id]
            new = append_tokens(sequence, found, self.capacity.tokens_per_sequence)
            if sequence.finish is not None:
                self._leave(sequence)
            updates.append(SequenceUpdate(segment, new, len(segment.tokens)))
        return updates

    def drop(self, sequence: Sequence) -> None:
        """End a text; whether its slot has heard its audio whole is not known."""
        sequence.finish = FinishReason.ABORT
        self._leave(sequence, has_heard=bool(sequence.computed))

    def gauges(self) -> Gauges:
        used = sum(sequence.computed for sequence in self._running.values())
        places = self.capacity.columns
        return Gauges(len(self._running), len(self._waiting), used, self._count * places)

    def violations(self) -> Iterator[str]:
        """A text that runs has a slot, and no other has one."""
        if len(self._slots) != len(self._running):
            yield f"{len(self._slots)} slots are taken by {len(self._running)} texts"
        yield from (f"text {name} runs without a slot" for name in self._running if name not in self._slots)

    def _leave(self, sequence: Sequence, has_heard: bool = True) -> None:
        self._waiting.pop(sequence.id, None)
        self._running.pop(sequence.id, None)
        self._slots.release(sequence.id, has_heard)
        sequence.move(SequenceStatus.FINISHED)

    def _segment(self, sequence: Sequence) -> Segment:
        """Its tokens that are not computed yet; the last one gives the next. state_key: of the audio."""
        first, places = sequence.computed, self.capacity.columns
        start = sequence.blocks[0] * places
        targets = tuple(range(start + first, start + len(sequence.tokens)))
        tokens, slot = tuple(sequence.tokens[first:]), tuple(sequence.blocks)
        return Segment(sequence, tokens, first, slot, first, targets, logit_rows=1, state_key=sequence.keys[0])
