"""What one step will run, decided before anything runs; what it came to; and the seam between the loop and whoever
decides. Pure: no clock, no arrays."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import NamedTuple

from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from engine.core.block_diffusion import Prediction
from engine.core.forecast_tree import ForecastTree, TreeOutcome
from engine.core.kv_blocks import BlockKey
from engine.core.policy import CostTable
from engine.core.sequence import Capacity, Sequence
from engine.core.speculation import NO_PROPOSALS, Drafter, DraftRequest
from engine.messages import Counters
from engine.request import Request, TokenLogprob


@dataclass(frozen=True, slots=True)
class Rules:
    """How the scheduler behaves: the settings, and what `build.py` makes of them for a model.
    offload_blocks: blocks that the host KV cache may hold, 0 = there is none. is_recurrent: whether sequences carry a
    state that is only there where they are; state_snapshots: how many copies of states there may be. window: slots that
    rows see in layers with the widest window, 0 = no layer has one; window_blocks: most blocks whose slots of such
    layers are there, 0 = all layers are such, and a pool's blocks behind the window are free."""

    config: EngineConfig
    capacity: Capacity
    offload_blocks: int
    is_recurrent: bool
    state_snapshots: int
    window: int
    window_blocks: int


FORESEEN_TOKENS = 256  # an answer may be bounded by the whole context and mostly is much shorter


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows of one sequence.

    tokens: one per row. first_position: of the first row; the rest follow. blocks: of the slots already computed that
    the sequence holds (`past_slots` of them count: its last tokens). targets: the slot each row's KV goes to if it
    is kept. logit_rows: how many of the last rows need logits. logprob_tokens: for each of the first of those rows the
    known prompt token that follows it, whose log-probability is reported; from each of the others a token is sampled.
    tree: what the rows are instead of a run of tokens; a token is sampled from each of its nodes, the logits of all
    rows are read, and `targets` has a slot for each place.
    state_key: of the snapshot of recurrent layers that the rows go on from, b"" = from where the sequence is.
    snapshots: after how many of the rows such a snapshot is taken, and its key.
    block_rows: rows of so many tokens see each other both ways, from block to block causally.
    masked: of a block that is denoised, the rows whose own tokens are predicted; these need logits instead of the last.
    Rows beyond `targets` are never kept.
    """

    sequence: Sequence
    tokens: tuple[int, ...]
    first_position: int
    blocks: tuple[int, ...]
    past_slots: int
    targets: tuple[int, ...]
    logit_rows: int
    logprob_tokens: tuple[int, ...] = ()
    state_key: BlockKey = b""
    snapshots: tuple[tuple[int, BlockKey], ...] = ()
    masked: tuple[int, ...] = ()
    tree: ForecastTree | None = None
    block_rows: int = 1

    @property
    def early_targets(self) -> tuple[int, ...]:
        """Where its first rows may be written while the step runs, guesses included.
        These slots are the sequence's alone, and written anew before anything sees them if the rows are not kept. Of a
        tree only the first node has its place already. A sequence that ends with the step waits for what is kept."""
        if not self.sequence.request.params.max_tokens:
            return ()
        return self.targets[:1] if self.tree is not None else self.targets

    @property
    def logit_indices(self) -> Iterable[int]:
        return self.masked or range(len(self.tokens) - self.logit_rows, len(self.tokens))

    @property
    def is_decode(self) -> bool:
        """Whether it is no prefill: one row and guesses behind it, or at most two blocks."""
        if self.sequence.active_block is not None:
            return len(self.tokens) <= self.sequence.decode_rows
        return 0 < self.read_rows == len(self.tokens) and not self.sequence.is_pooled

    @property
    def room(self) -> int:
        """KV slots that the sequence is going to need: for its tokens, and for those it is still expected to give."""
        sequence = self.sequence
        coming = min(sequence.request.params.max_tokens - sequence.generated, FORESEEN_TOKENS)
        return max(len(sequence.tokens) + coming, self.first_position + len(self.tokens))

    @property
    def sampled_rows(self) -> int:
        """Logit rows from which a token is sampled: the last ones; 0 while a prompt is computed."""
        return self.tree.nodes if self.tree is not None else self.read_rows

    @property
    def read_rows(self) -> int:
        """Logit rows that the sampler reads: those it samples a token from, and those of forecasts."""
        return self.logit_rows - len(self.logprob_tokens)

    @property
    def guesses(self) -> tuple[int, ...]:
        """The guessed tokens at the end of `tokens`: all that sampled rows hold but the first, which is certain."""
        if self.masked:
            return ()
        if self.tree is not None:
            return self.tokens[1:]
        return self.tokens[len(self.tokens) - self.sampled_rows + 1 :]


class MoveKind(StrEnum):
    OFFLOAD = "offload"  # copied from the block to the host cache
    LOAD = "load"  # copied from the host cache to the block
    EVICT = "evict"  # the host cache's copy is forgotten; the block is irrelevant


@dataclass(frozen=True, slots=True)
class BlockMove:
    """One copy between the pool and the host cache. Moves are done before the step, strictly in order."""

    kind: MoveKind
    key: bytes
    block: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Prefill segments come first, single decode rows last; the step is right-aligned."""

    shape: StepShape
    segments: tuple[Segment, ...]
    moves: tuple[BlockMove, ...] = ()

    @property
    def rows_used(self) -> int:
        return sum(len(segment.tokens) for segment in self.segments)


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """What one segment came to: new tokens of its sequence, and how many of its rows, from the first, are kept.
    drafted, accepted: guesses that were judged, and those of them that are new tokens. logprobs: of tokens that were
    chosen in several steps. path: of a tree the accepted nodes; the first `kept_rows` of these are kept."""

    segment: Segment
    new_tokens: tuple[int, ...]
    kept_rows: int
    drafted: int = 0
    accepted: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()
    path: tuple[int, ...] = ()

    @property
    def sequence(self) -> Sequence:
        return self.segment.sequence


@dataclass(slots=True)
class StepResult:
    """What was read of the logits of a step, by sequence id.
    tokens: one for each sampled row; of a tree those behind the accepted nodes; of a vector any, which max_tokens 0
    leaves out. logprobs: of these, where they were asked for. lost: why a sequence cannot go on. deferred: ids of
    sequences that were not sampled; their logit rows are computed again in a later step. predicted: what is said of
    each masked token of a block. trees: what came of them. vectors: of sequences that want one instead of a token.
    prompt_logprobs: of the prompt tokens whose log-probabilities the step gave."""

    tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[str, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    deferred: set[str] = field(default_factory=set)
    predicted: dict[str, tuple[Prediction, ...]] = field(default_factory=dict)
    trees: dict[str, TreeOutcome] = field(default_factory=dict)
    vectors: dict[str, bytes] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprob]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Freed:
    """What the runtime may give back: states of sequences by id, snapshots by key, blocks.
    behind: blocks of which only the layers with a window give their slots back."""

    sequences: tuple[str, ...] = ()
    snapshots: tuple[BlockKey, ...] = ()
    blocks: frozenset[int] = frozenset()
    behind: frozenset[int] = frozenset()


class Gauges(NamedTuple):
    """Numbers of now: sequences that run and wait, KV slots in use and in all; as messages name them."""

    running: int = 0
    waiting: int = 0
    kv_slots_used: int = 0
    kv_slots_total: int = 0


class Planner(ABC):
    """Owns the sequences. `plan` decides a step, `commit` takes in what the step gave.
    costs: what steps take. capacity: limits of one sequence. block_size: KV slots of a block."""

    def __init__(self, costs: CostTable, capacity: Capacity, block_size: int) -> None:
        self.costs = costs
        self.capacity = capacity
        self.block_size = block_size
        self.counters = Counters()  # of admission, preemption and guesses; the others are the loop's
        self._arrivals = count()

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
        proposals: a draft model's guesses, by id."""

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
