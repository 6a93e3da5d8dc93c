"""Which texts of an encoder, or of speech, share the next step.

Texts of an encoder are computed whole, and nothing of them is kept. Requests take turns in a ring (deficit round
robin). The request at the front spends its credit of rows, then goes to the end with a new turn's credit. A newcomer
starts at the end, so nobody is overtaken. A step is filled in that order until a text does not fit; the rows left over
go to whatever fits. So one request of R rows that meets m others is done, whatever waits behind them, after
2 (R + m (k C + T)) / M + 1 steps: M = rows of the largest step, C = credit of a turn, k = turns it needs (R / C,
rounded up), T = rows of the longest text.

A text of speech has a slot: the keys and values of what it hears, and of its tokens. A newcomer takes a slot and a step
of its own, in which the encoder hears its audio, unless a slot has heard the same, and its prompt is read. All texts
that run then share steps, a row each. Newcomers come first: the more run together, the cheaper is each token.
"""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

from engine.bundle.encoder import pair_types
from engine.bundle.variant import ShapeTable, StepShape
from engine.core.plan import Gauges, Planner, Segment, SequenceUpdate, StepPlan, StepResult
from engine.core.policy import CostTable
from engine.core.sequence import Capacity, Sequence, SequenceStatus, append_tokens
from engine.core.speculation import NO_PROPOSALS
from engine.request import FinishReason, Request

TURNS_PER_STEP = 4  # a turn's credit is that part of the largest step
LOOK_AHEAD = 32  # texts of one request that are tried for the rows that are left


@dataclass(slots=True)
class TextGroup:
    """The waiting texts of one request: rows by id, in the order they came. credit: rows left of its turn."""

    credit: int
    texts: dict[str, int] = field(default_factory=dict)


Ring = dict[str, TextGroup]  # the first has its turn


def take_turns(ring: Ring, rows: int, credit: int) -> Iterator[str]:
    """Texts in the order of turns that fit `rows`; ends at the first that does not.
    Turns and credits are spent as texts are taken; who takes one removes it from the ring before the next."""
    while ring:
        request, group = next(iter(ring.items()))
        name, size = next(iter(group.texts.items()))
        if size > group.credit:
            ring[request] = ring.pop(request)
            group.credit += credit
        elif size > rows:
            return
        else:
            group.credit -= size
            rows -= size
            yield name


def left_over(ring: Ring, rows: int) -> Iterator[str]:
    """Texts that fit rows which would be padding, by nobody's turn."""
    for group in ring.values():
        for name, size in islice(group.texts.items(), LOOK_AHEAD):
            if size <= rows:
                rows -= size
                yield name


class TextQueue:
    """Waiting texts by request and priority (lower first); the only owner of turns and credits.
    variants: rows that a step may have. alone: a step has one text, whose numbers then depend on no other."""

    def __init__(self, variants: Several[int], alone: bool = False) -> None:
        self._variants = tuple(variants)
        self._alone = alone
        self._most = max(variants)
        self._credit = max(1, self._most // TURNS_PER_STEP)
        self._rings: dict[int, Ring] = {}
        self._group_of: dict[str, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._group_of)

    def __contains__(self, name: str) -> bool:
        return name in self._group_of

    def add(self, name: str, request: str, rows: int, priority: int = 0) -> None:
        """Queue one text of a request. ValueError when no variant has so many rows."""
        if not 0 < rows <= self._most:
            raise ValueError(f"a text has {rows} tokens, this model reads at least 1 and at most {self._most}")
        group = self._rings.setdefault(priority, {}).setdefault(request, TextGroup(self._credit))
        group.texts[name] = rows
        self._group_of[name] = (priority, request)

    def remove(self, name: str) -> None:
        if name in self._group_of:
            self._pop(name)

    def take(self) -> tuple[int, tuple[str, ...]]:
        """The rows of the next step and its texts, which wait no longer; (0, ()) when none waits."""
        chosen: list[str] = []
        used = 0
        for priority in sorted(self._rings):
            for name in take_turns(self._rings[priority], self._most - used, self._credit):
                used += self._pop(name)
                chosen.append(name)
                if self._alone:
                    return self._smallest(used), (name,)
        for priority in sorted(self._rings):
            for name in tuple(left_over(self._rings[priority], self._most - used)):
                used += self._pop(name)
                chosen.append(name)
        return (self._smallest(used), tuple(chosen)) if chosen else (0, ())

    def _smallest(self, rows: int) -> int:
        return min(variant for variant in self._variants if variant >= rows)

    def _pop(self, name: str) -> int:
        priority, request = self._group_of.pop(name)
        ring = self._rings[priority]
        rows = ring[request].texts.pop(name)
        if not ring[request].texts:
            del ring[request]
        if not ring:
            del self._rings[priority]
        return rows


class TextScheduler(Planner):
    """Implements `Planner` for encoders. shapes: of steps, with no past and a longest text.
    middle_ids: between the two texts of a pair whose token types differ, () = there is one type."""

    def __init__(
        self, shapes: ShapeTable, costs: CostTable, middle_ids: tuple[int, ...] = (), alone: bool = False
    ) -> None:
        super().__init__(costs, Capacity(shapes.longest_text, shapes.longest_text), block_size=1)
        self._middle_ids = middle_ids
        self._queue = TextQueue([shape.rows for shape in shapes.fixed], alone)
        self._texts: dict[str, Sequence] = {}

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> Sequence:
        """Queue a text. ValueError when a token is wanted of it, or when it is too long."""
        ids, longest = request.prompt_ids, self.capacity.tokens_per_input
        if request.pooling is None:
            raise ValueError("this model turns texts into vectors; it generates nothing")
        if len(ids) > longest:
            raise ValueError(f"the text has {len(ids)} tokens, this model reads {longest} at most")
        if self._middle_ids and not pair_types(ids, self._middle_ids):
            raise ValueError("a pair of texts is wanted, and there is one text")
        self._queue.add(request.id, caller_of(request.id), len(ids), request.priority)
        sequence = Sequence(request, next(self._arrivals), seed, list(ids), arrived_s=now_s)
        self._texts[request.id] = sequence
        return sequence

    def find(self, sequence_id: str) -> Sequence | None:
        return self._texts.get(sequence_id)

    @property
    def has_work(self) -> bool:
        return len(self._queue) > 0

    def sequences(self) -> tuple[Sequence, ...]:
        return tuple(self._texts.values())

    def plan(
        self, late: Collection[str] = (), proposals: Mapping[str, tuple[int, ...]] = NO_PROPOSALS
    ) -> StepPlan | None:
        rows, names = self._queue.take()
        if not names:
            return None
        return StepPlan(StepShape(rows, 0), tuple(_whole(self._texts.pop(name)) for name in names))

    def commit(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        segments = [segment for segment in plan.segments if not segment.sequence.is_finished]
        for segment in segments:
            segment.sequence.steps, segment.sequence.step_rows = 1, plan.rows_used
            _end(segment.sequence, FinishReason.LENGTH)
        return [SequenceUpdate(segment, (), 0) for segment in segments]

    def drop(self, sequence: Sequence) -> None:
        self._queue.remove(sequence.id)
        self._texts.pop(sequence.id, None)
        _end(sequence, FinishReason.ABORT)

    def gauges(self) -> Gauges:
        return Gauges(waiting=len(self._queue))

    def violations(self) -> Iterator[str]:
        """A text without a place in the queue would wait for ever."""
        return (f"text {name} waits for no step" for name in self._texts if name not in self._queue)


def caller_of(name: str) -> str:
    """The HTTP request that a text belongs to: ids are REQUEST-NUMBER#COUNT."""
    return name.rpartition("#")[0].rpartition("-")[0] or name


def _end(sequence: Sequence, reason: FinishReason) -> None:
    sequence.finish = reason
    sequence.move(SequenceStatus.FINISHED)


def _whole(sequence: Sequence) -> Segment:
    """A whole text; each of its rows sees all of them, the last one stands for the output."""
    tokens = tuple(sequence.tokens)
    return Segment(sequence, tokens, 0, (), 0, (), logit_rows=1, block_rows=max(1, len(tokens)))


class SpeechScheduler(Planner):
    """Implements `Planner`. slots: texts that run at once. places: tokens of one. features: bytes of its audio."""

    def __init__(self, costs: CostTable, slots: int, places: int, features: int) -> None:
        super().__init__(costs, Capacity(places, places), block_size=places)
        self._features = features
        self._count = slots
        self._heard = dict.fromkeys(range(slots), b"")  # by free slot its last audio, the longest unused first
        self._waiting: dict[str, Sequence] = {}
        self._running: dict[str, Sequence] = {}  # the only block of each is its slot

    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> Sequence:
        """Queue a text. ValueError when it brings no audio, or more tokens than there are places."""
        if len(request.audio) != self._features:
            raise ValueError(f"this model writes speech down: {self._features} bytes of audio are wanted with a prompt")
        tokens = [*request.prompt_ids, *emitted]
        if len(tokens) > self.capacity.tokens_per_sequence:
            raise ValueError(f"the prompt has {len(tokens)} tokens, {self.capacity.tokens_per_sequence} is the most")
        keys, resumed = [blake2b(request.audio, digest_size=16).digest()], len(emitted)
        sequence = Sequence(request, next(self._arrivals), seed, tokens, keys=keys, arrived_s=now_s, resumed=resumed)
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
        if self._waiting and self._heard:
            sequence = min(self._waiting.values(), key=lambda each: each.rank)
            del self._waiting[sequence.id]
            sequence.blocks = [self._take_slot(sequence.keys[0])]
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
            if (sequence := segment.sequence).is_finished:
                continue
            if sequence.status is SequenceStatus.PREFILL:
                sequence.move(SequenceStatus.DECODE)
            sequence.computed += len(segment.tokens)
            sequence.steps += 1
            sequence.step_rows += plan.rows_used
            new = append_tokens(sequence, result.tokens[sequence.id], self.capacity.tokens_per_sequence)
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
        return Gauges(len(self._running), len(self._waiting), used, self._count * self.capacity.slots)

    def violations(self) -> Iterator[str]:
        slots = [*self._heard, *self._taken_slots()]
        if sorted(slots) != list(range(self._count)):
            yield f"of {self._count} slots, {len(self._heard)} are free and {len(self._running)} texts run"

    def _taken_slots(self) -> list[int]:
        return [slot for sequence in self._running.values() for slot in sequence.blocks]

    def _take_slot(self, audio: bytes) -> int:
        """Nearest to the taken ones, as a step runs all between: who has heard the audio, else the longest unused."""
        taken = self._taken_slots()
        reach = {slot: max(*taken, slot) - min(*taken, slot) if taken else 0 for slot in self._heard}
        slot = min(self._heard, key=lambda slot: (reach[slot], self._heard[slot] != audio))
        del self._heard[slot]
        return slot

    def _leave(self, sequence: Sequence, has_heard: bool = True) -> None:
        self._waiting.pop(sequence.id, None)
        if self._running.pop(sequence.id, None) is not None:
            self._heard[sequence.blocks[0]] = sequence.keys[0] if has_heard else b""
        sequence.move(SequenceStatus.FINISHED)

    def _segment(self, sequence: Sequence) -> Segment:
        """Its tokens that are not computed yet; the last one gives the next. state_key: of the audio."""
        first, places = sequence.computed, self.capacity.slots
        start = sequence.blocks[0] * places
        targets = tuple(range(start + first, start + len(sequence.tokens)))
        tokens, slot = tuple(sequence.tokens[first:]), tuple(sequence.blocks)
        return Segment(sequence, tokens, first, slot, first, targets, logit_rows=1, state_key=sequence.keys[0])
