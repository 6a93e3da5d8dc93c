"""A draft model: before a pass it reads what is new of each sequence and goes on from there, token by token.

It samples as the served model will, with the same random number for the same token, so that the two agree most often.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.drafts.draft_passes import DraftPasses, DraftRows, in_parts
from engine.drafts.follower import Follower
from engine.errors import PassFailed
from engine.request import SamplingParams
from engine.sampling.row_context import RowContext
from engine.sampling.sampler import SampledToken, sample
from engine.speculation.drafter import DraftWish

log = logging.getLogger("hexserve.worker")

USUAL_MOST = 8
SHORT_BACKLOG = 16  # tokens that are read in the pass that proposes


@dataclass(slots=True, eq=False)
class Proposal:
    """One sequence's: what is left to read of it, and the tokens proposed so far."""

    wish: DraftWish
    follower: Follower
    unread: list[int]
    tokens: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Whether it has as many tokens as were wished."""
        return len(self.tokens) >= self.wish.count

    @property
    def completion(self) -> list[int]:
        """Tokens behind the prompt, the proposed ones among them."""
        return [*self.wish.tokens[len(self.wish.request.prompt_ids) :], *self.tokens]


class DraftModel:
    """Implements `Drafter` over graphs of its own. A failure switches it off; answers go on.

    max_context: tokens of one sequence that it can read. vocab: ids that the served model has. most: tokens of one
    proposal, 0 = as many as usual.
    """

    def __init__(self, passes: DraftPasses, max_context: int, vocab: int, most: int) -> None:
        self.passes = passes
        self._vocab = vocab
        self._most = most or USUAL_MOST
        self._context = min(max_context, passes.columns)

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
        return self.passes.followers.unread(sequence_id, tokens)

    def is_long(self, backlog: int) -> bool:
        """Whether it takes more than the first pass of a proposal."""
        return backlog > min(SHORT_BACKLOG, self.passes.max_rows)

    def reading_ms(self, tokens: int) -> float:
        """Milliseconds of the passes that read so many tokens."""
        rows = self.passes.reading_rows
        return -(-tokens // rows) * self.passes.price(rows)

    def proposal_ms(self, sequences: int, count: int) -> float:
        """A pass for each token; the first one reads what the served model has added."""
        return self.passes.price(2 * sequences) + (count - 1) * self.passes.price(sequences) if count else 0.0

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
        self.passes.retain(sequence_ids)

    def close(self) -> None:
        """Close its graphs."""
        self.passes.close()

    def _propose(self, wishes: Sequence[DraftWish]) -> dict[str, tuple[int, ...]]:
        self.passes.followers.begin_step()
        proposals = [self._begin(wish) for wish in wishes]
        self.passes.free()
        late = [each for each in proposals if self.is_long(len(each.unread))]
        next((each for each in late if self._read_on(each)), None)
        self._guess([each for each in proposals if not self.is_long(len(each.unread))])
        return {each.wish.request.id: tuple(each.tokens) for each in proposals if each.tokens}

    def _begin(self, wish: DraftWish) -> Proposal:
        follower = self.passes.followers.follow(wish.request, wish.tokens)
        return Proposal(wish, follower, list(wish.tokens[len(follower.tokens) :]))

    def _read_on(self, late: Proposal) -> bool:
        """One chunk of a long backlog, its last token left for the pass that proposes; False if it has no room."""
        count = min(self.passes.reading_rows, len(late.unread) - 1)
        if not self.passes.followers.grow(late.follower, len(late.wish.tokens) + late.wish.count):
            return False
        self.passes.run([_rows(late, late.unread[:count])])
        del late.unread[:count]
        return True

    def _guess(self, running: list[Proposal]) -> None:
        """A token for each in every pass, until all have what was wished or can go no further."""
        while running := [each for each in running if each.unread and not each.is_done]:
            for part in in_parts([len(each.unread) for each in running], self.passes.max_rows):
                self._pass(running[part])

    def _pass(self, proposals: Sequence[Proposal]) -> None:
        """Read what is unread and add a token to each proposal; one that cannot go on has nothing unread any more."""
        able = [each for each in proposals if self._has_room(each)]
        for each in proposals:
            each.unread = each.unread if each in able else []
        if not able:
            return
        logits = self.passes.run([_rows(each, each.unread, (len(each.unread) - 1,)) for each in able])
        contexts = [_context(each, logits.codes.shape[-1]) for each in able]
        for each, token in zip(able, sample(logits, contexts), strict=True):
            each.unread = []
            if isinstance(token, SampledToken) and token.token_id < self._vocab:
                each.tokens.append(token.token_id)
                each.unread = [token.token_id]

    def _has_room(self, proposal: Proposal) -> bool:
        return self.passes.followers.grow(proposal.follower, len(proposal.follower.tokens) + len(proposal.unread))


def _rows(proposal: Proposal, tokens: Sequence[int], logits: Sequence[int] = ()) -> DraftRows:
    coming = proposal.wish.request.params.max_tokens
    return DraftRows(proposal.follower, tuple(tokens), len(tokens), logits, coming)


def _context(proposal: Proposal, vocab: int) -> RowContext:
    """What the sampler must know for the next token; what the draft model has no id for is left out."""
    wish = proposal.wish
    params = known_params(wish.request.params, vocab)
    return RowContext(params, wish.seed, wish.request.prompt_ids, proposal.completion)


def known_params(params: SamplingParams, vocab: int) -> SamplingParams:
    """The parameters without what only the served model can do: its log-probabilities, grammar, ids beyond `vocab`."""
    return replace(
        params,
        logprobs=None,
        grammar=None,
        logit_bias=tuple((token, bias) for token, bias in params.logit_bias if token < vocab),
        stop_token_ids=tuple(token for token in params.stop_token_ids if token < vocab),
    )
