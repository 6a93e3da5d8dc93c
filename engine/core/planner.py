"""The seam between the loop and whoever decides what runs in the next step. Pure: no clock, no arrays."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from engine.core.kv_blocks import BlockKey
from engine.core.plan import SequenceUpdate, StepPlan, StepResult
from engine.core.policy import CostTable
from engine.core.sequence import Capacity, Sequence
from engine.core.speculation import NO_PROPOSALS, Drafter, DraftRequest
from engine.messages import Counters
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Freed:
    """What the runtime may give back: states of sequences by id, snapshots by key, blocks.

    behind: blocks of which only the layers with a window give their slots back.
    """

    sequences: tuple[str, ...] = ()
    snapshots: tuple[BlockKey, ...] = ()
    blocks: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Gauges:
    """Numbers of now: sequences that run and wait, KV slots in use and in all."""

    running: int = 0
    waiting: int = 0
    slots_used: int = 0
    slots_total: int = 0


class Planner(ABC):
    """Owns the sequences. `plan` decides a step, `commit` takes in what the step gave.

    costs: what steps take. capacity: limits of one sequence. block_size: KV slots of a block.
    """

    def __init__(self, costs: CostTable, capacity: Capacity, block_size: int) -> None:
        self.costs = costs
        self.capacity = capacity
        self.block_size = block_size
        self.counters = Counters()  # of admission, preemption and guesses; the others are the loop's

    @abstractmethod
    def add(self, request: Request, emitted: tuple[int, ...], seed: int, now_s: float) -> Sequence:
        """Queue a request; `emitted` are tokens of an earlier worker. ValueError when it can never run."""

    @abstractmethod
    def find(self, sequence_id: str) -> Sequence | None:
        """The unfinished sequence of an id, for callers outside a step; a plan's segments carry theirs."""

    def abort(self, sequence_id: str) -> Sequence | None:
        """Forget a request; None if it is not here."""
        sequence = self.find(sequence_id)
        if sequence is not None:
            self.drop(sequence)
        return sequence

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether `plan` would find something."""

    @abstractmethod
    def sequences(self) -> tuple[Sequence, ...]:
        """All unfinished sequences."""

    @abstractmethod
    def plan(
        self, late: Collection[str] = (), proposals: Mapping[str, tuple[int, ...]] = NO_PROPOSALS
    ) -> StepPlan | None:
        """Decide the next step; None when no sequence can run.

        late: ids of sequences whose next token cannot be sampled now; of a prompt all but the last token is computed.
        proposals: a draft model's guesses, by id.
        """

    @abstractmethod
    def commit(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Take in what a step came to, and end what is finished. Sequences dropped since `plan` get no update."""

    def fail(self, plan: StepPlan) -> list[Sequence]:
        """The step failed: drop the sequences it carried."""
        lost = [segment.sequence for segment in plan.segments if not segment.sequence.is_finished]
        for sequence in lost:
            self.drop(sequence)
        return lost

    @abstractmethod
    def drop(self, sequence: Sequence) -> None:
        """End a sequence whose request is gone, or which a step has spoiled."""

    @abstractmethod
    def gauges(self) -> Gauges:
        """How much waits, runs and is used."""

    def draft_requests(self, drafter: Drafter, late: Collection[str] = ()) -> list[DraftRequest]:
        """What a draft model shall propose for the next step."""
        return []

    def take_freed(self) -> Freed:
        """What nobody needs any more since the last call."""
        return Freed()

    def violations(self) -> Iterable[str]:
        """One sentence for each rule that must hold between steps and does not."""
        return ()
