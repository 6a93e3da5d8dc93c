"""A draft model: before a pass it reads what is new of each sequence and goes on from there, token by token.

It samples as the served model will, with the same random number for the same token, so that the two agree most often.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.bundle.variant import PassShape, ShapeTable
from engine.cache.pages import PagePool
from engine.config import PAGE_COLUMNS
from engine.drafts.follower import Follower, Followers
from engine.errors import PassFailed
from engine.graphs.batch import PackedBatch, PackedSegment
from engine.graphs.logits import Logits
from engine.graphs.runtime import Runtime
from engine.request import SamplingParams
from engine.sampling.row_context import RowContext
from engine.sampling.sampler import SampledToken, sample
from engine.scheduling.costs import CostTable
from engine.speculation.drafter import DraftWish

log = logging.getLogger("hexserve.worker")

USUAL_MOST = 8
SHORT_BACKLOG = 16  # tokens that are read in the pass that proposes
READING_ROWS = (128, 64, 32, 16)
LEAST_READING_ROWS = 8
READING_MS = 60.0  # of one step, so that nobody's next token waits long


@dataclass(slots=True, eq=False)
class _Proposal:
    """One sequence's: what is left to read of it, and the tokens proposed so far."""

    wish: DraftWish
    follower: Follower
    unread: list[int]
    tokens: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) >= self.wish.count


class DraftModel:
    """Implements `Drafter` over a runtime of its own with one pool. A failure switches it off; answers go on.

    max_context: tokens of one sequence that it can read. vocab: ids that the served model has. most: tokens of one
    proposal, 0 = as many as usual. clock: seconds.
    """

    def __init__(
        self,
        runtime: Runtime,
        costs: CostTable,
        max_context: int,
        vocab: int,
        most: int,
        clock: Callable[[], float],
    ) -> None:
        self._runtime = runtime
        self._shapes = _wide(runtime.shapes)
        self._costs = costs
        self._vocab = vocab
        self._most = most or USUAL_MOST
        self._clock = clock
        self._width = 0
        columns = min((shape.past for shape in self._shapes.fixed), default=self._shapes.max_past)
        self._followers = Followers(PagePool(columns, PAGE_COLUMNS))
        self._context = min(max_context, self._followers.pool.page_count * PAGE_COLUMNS)

    @property
    def most(self) -> int:
        """Tokens of one proposal; 0 once it has failed."""
        return self._most

    def reach(self, tokens: int) -> int:
        """As many wherever a sequence is."""
        return self._most

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        """Tokens to read; None when the sequence is too long for it."""
        if len(tokens) + self._most > self._context:
            return None
        return self._followers.unread(sequence_id, tokens)

    def is_long(self, backlog: int) -> bool:
        """Whether it takes more than the first pass of a proposal."""
        return backlog > min(SHORT_BACKLOG, self._shapes.max_rows)

    def reading_ms(self, tokens: int) -> float:
        """Milliseconds of the passes that read so many tokens."""
        rows = self._reading_rows()
        return -(-tokens // rows) * self._price(rows)

    def proposal_ms(self, sequences: int, count: int) -> float:
        """A pass for each token; the first one reads what the served model has added."""
        return self._price(2 * sequences) + (count - 1) * self._price(sequences) if count else 0.0

    def propose(self, wishes: Sequence[DraftWish]) -> Mapping[str, tuple[int, ...]]:
        """Run the passes. Of sequences with a long backlog the first is read on, and nothing is proposed for them."""
        try:
            return self._propose(wishes)
        except PassFailed as error:
            log.warning("the draft model is switched off, answers go on without it: %s", error)
            self._most = 0
            return {}

    def retain(self, sequence_ids: Collection[str]) -> None:
        """Forget the others, and give memory back."""
        self._followers.retain(sequence_ids)
        self._free()

    def close(self) -> None:
        """Close its runtime."""
        self._runtime.close()

    def _propose(self, wishes: Sequence[DraftWish]) -> dict[str, tuple[int, ...]]:
        self._followers.begin_step()
        proposals = [
            _Proposal(wish, follower, list(wish.tokens[len(follower.tokens) :]))
            for wish in wishes
            for follower in [self._followers.follow(wish.request, wish.tokens)]
        ]
        self._free()
        late = [each for each in proposals if self.is_long(len(each.unread))]
        next((each for each in late if self._read_on(each)), None)
        running = [each for each in proposals if not self.is_long(len(each.unread))]
        while running := [each for each in running if not each.is_done]:
            for part in self._parts(running):
                self._pass(part)
            running = [each for each in running if each.unread]
        return {each.wish.request.id: tuple(each.tokens) for each in proposals if each.tokens}

    def _read_on(self, late: _Proposal) -> bool:
        """One chunk of a long backlog, its last token left for the pass that proposes; False if it has no room."""
        count = min(self._reading_rows(), len(late.unread) - 1)
        if not self._followers.grow(late.follower, len(late.wish.tokens) + late.wish.count):
            return False
        self._run([(late, late.unread[:count])], False)
        return True

    def _parts(self, running: Sequence[_Proposal]) -> list[list[_Proposal]]:
        """Proposals that fit one pass each."""
        parts: list[list[_Proposal]] = [[]]
        rows = 0
        for each in running:
            if rows + len(each.unread) > self._shapes.max_rows and parts[-1]:
                parts.append([])
                rows = 0
            parts[-1].append(each)
            rows += len(each.unread)
        return parts

    def _pass(self, proposals: Sequence[_Proposal]) -> None:
        """Read what is unread and add a token to each proposal; one that cannot go on has nothing unread any more."""
        able = [
            each
            for each in proposals
            if len(each.unread) <= self._shapes.max_rows
            and self._followers.grow(each.follower, len(each.follower.tokens) + len(each.unread))
        ]
        for each in proposals:
            each.unread = each.unread if each in able else []
        if not able:
            return
        logits = self._run([(each, list(each.unread)) for each in able], True)
        contexts = [_context(each, logits.codes.shape[-1]) for each in able]
        for each, token in zip(able, sample(logits, contexts), strict=True):
            each.unread = []
            if isinstance(token, SampledToken) and token.token_id < self._vocab and each.follower.pages:
                each.tokens.append(token.token_id)
                each.unread = [token.token_id]

    def _run(self, parts: Sequence[tuple[_Proposal, list[int]]], wants_logits: bool) -> Logits:
        """One pass over tokens of several sequences; their keys and values are kept."""
        batch, columns = self._pack(parts, wants_logits)
        self._width = batch.shape.past
        began = self._clock()
        logits = self._runtime.run(batch)
        self._costs.observe(batch.shape, 1000.0 * (self._clock() - began))
        used = np.arange(batch.segments[0].start, batch.shape.rows)
        if len(self._runtime.non_finite_rows(used)):
            raise PassFailed("it computed keys or values that are not finite")
        self._runtime.keep(0, used, np.array(columns, np.int64))
        for each, tokens in parts:
            each.follower.tokens.extend(tokens)
            del each.unread[: len(tokens)]
        return logits

    def _pack(self, parts: Sequence[tuple[_Proposal, list[int]]], wants_logits: bool) -> tuple[PackedBatch, list[int]]:
        """The rows of a pass, right-aligned, and the column of each."""
        shape = self._shape(sum(len(tokens) for _, tokens in parts), max(len(e.follower.tokens) for e, _ in parts))
        ids, positions = np.zeros(shape.rows, np.int32), np.zeros(shape.rows, np.int32)
        row = shape.rows - sum(len(tokens) for _, tokens in parts)
        segments: list[PackedSegment] = []
        columns: list[int] = []
        for each, tokens in parts:
            follower, count = each.follower, len(tokens)
            past = len(follower.tokens)
            ids[row : row + count] = tokens
            positions[row : row + count] = np.arange(past, past + count)
            pages = tuple(follower.pages[: -(-past // PAGE_COLUMNS)])
            segments.append(PackedSegment(row, count, pages, past, past + count + each.wish.request.params.max_tokens))
            columns += self._followers.columns(follower, count)
            row += count
        logit_rows = [segment.end - 1 for segment in segments] if wants_logits else []
        logits = np.array(logit_rows, np.int64)
        return PackedBatch(shape, 0, ids, positions, logits, tuple(segments), PAGE_COLUMNS), columns

    def _shape(self, rows: int, past: int) -> PassShape:
        """The cheapest shape of at least so many rows over the pool as it is used; past: the longest of the pass."""
        shapes, pool = self._shapes, self._followers.pool
        if shapes.segmented and shapes.free:
            return PassShape(rows, shapes.round_past(past))
        used = pool.high_water(with_cached=False)
        if shapes.free:
            used = pool.high_water(with_cached=True)
            return PassShape(rows, max(shapes.round_past(used), self._width))
        able = [shape for shape in shapes.fixed if shape.rows >= rows and shape.past >= used]
        chosen = min(able, key=lambda s: self._costs.milliseconds(s) + self._costs.switch_ms(self._width, s))
        pool.trim(chosen.past)
        return chosen

    def _price(self, rows: int) -> float:
        """Milliseconds of a pass of so many rows as it would run now."""
        shapes = self._shapes
        if shapes.free:
            return self._costs.milliseconds(PassShape(min(rows, shapes.max_rows), max(shapes.past_step, self._width)))
        able = [shape for shape in shapes.fixed if shape.rows >= rows] or [max(shapes.fixed)]
        return min(self._costs.milliseconds(shape) for shape in able)

    def _reading_rows(self) -> int:
        """Rows of a prompt that are read in one step."""
        least = min(LEAST_READING_ROWS, self._shapes.max_rows)
        fitting = [rows for rows in READING_ROWS if rows <= self._shapes.max_rows]
        return next((rows for rows in fitting if self._price(rows) <= READING_MS), least)

    def _free(self) -> None:
        if emptied := self._followers.pool.take_emptied():
            self._runtime.free(0, emptied)


def _wide(shapes: ShapeTable) -> ShapeTable:
    """Without the fixed shapes of less than half the widest past: all that are left span the same columns."""
    if shapes.free:
        return shapes
    wide = tuple(shape for shape in shapes.fixed if 2 * shape.past >= shapes.max_past)
    return replace(shapes, fixed=wide, max_rows=max(shape.rows for shape in wide))


def _context(proposal: _Proposal, vocab: int) -> RowContext:
    """What the sampler must know for the next token; what the draft model has no id for is left out."""
    request = proposal.wish.request
    completion = [*proposal.wish.tokens[len(request.prompt_ids) :], *proposal.tokens]
    return RowContext(_known(request.params, vocab), proposal.wish.seed, request.prompt_ids, completion)


def _known(params: SamplingParams, vocab: int) -> SamplingParams:
    return replace(
        params,
        logprobs=None,
        grammar=None,
        logit_bias=tuple((token, bias) for token, bias in params.logit_bias if token < vocab),
        stop_token_ids=tuple(token for token in params.stop_token_ids if token < vocab),
    )
