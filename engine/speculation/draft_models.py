"""Draft models: one guesses token by token; of a block-diffusion model one step proposes the rest of a block.
Before a step both read what is new of each sequence. The first goes on from there; it samples as the served model will,
with the same random number for the same token, so that the two agree most often. The second keeps whole blocks; the one
that a sequence has got into follows them with masks for what is missing, and nothing of it is kept."""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import DiffusionSpec
from engine.core.plan import FORESEEN_TOKENS
from engine.core.speculation import Drafter, DraftRequest
from engine.errors import StepFailed
from engine.request import Denoising, SamplingParams
from engine.sampling.sample_step import predict_row
from engine.sampling.sampler import RowContext, SampledToken, sample, uniform
from engine.speculation.draft_steps import DraftRows, DraftSequence, DraftSteps, in_parts

log = logging.getLogger("hexserve.worker")

USUAL_MOST = 8
SHORT_BACKLOG = 16  # tokens that are read in the step that proposes


@dataclass(slots=True, eq=False)
class Proposal:
    """One sequence's: what is left to read of it, and the tokens proposed so far."""

    asked: DraftRequest
    drafted: DraftSequence
    unread: list[int]
    tokens: list[int] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return len(self.tokens) >= self.asked.count

    @property
    def completion(self) -> list[int]:
        return [*self.asked.tokens[len(self.asked.request.prompt_ids) :], *self.tokens]


class DraftModel(Drafter):
    """A draft model over graphs of its own. A failure switches it off; answers go on.
    max_context: tokens of one sequence that it can read. vocab: ids that both models have; a sequence with others is
    not followed. most: tokens of one proposal, 0 = as many as usual."""

    def __init__(self, steps: DraftSteps, max_context: int, vocab: int, most: int) -> None:
        self.steps = steps
        self._vocab = vocab
        self.most = most or USUAL_MOST
        self._context = min(max_context, steps.columns)
        self._foreign: set[str] = set()  # sequences with ids of the served model alone
        self._left, self._masks = 1, 0  # tokens that the step which proposes reads at least; those that are not kept

    def reach(self, tokens: int) -> int:
        return self.most

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        if len(tokens) + self.most > self._context or sequence_id in self._foreign:
            return None
        return self.steps.sequences.unread(sequence_id, tokens)

    def is_long(self, backlog: int) -> bool:
        return backlog > min(SHORT_BACKLOG, self.steps.max_rows)

    def reading_ms(self, tokens: int) -> float:
        rows = self.steps.reading_rows
        return -(-tokens // rows) * self.steps.price(rows)

    def proposal_ms(self, sequences: int, count: int) -> float:
        """A step for each token; the first one reads what the served model has added."""
        return self.steps.price(2 * sequences) + (count - 1) * self.steps.price(sequences) if count else 0.0

    def propose(self, requests: Sequence[DraftRequest]) -> Mapping[str, tuple[int, ...]]:
        """Run the steps. Of sequences with a long backlog the first is read on, and nothing is proposed for them."""
        try:
            return self._propose(requests)
        except StepFailed as error:
            log.warning("the draft model is switched off, answers go on without it: %s", error)
            self.most = 0
            return {}

    def retain(self, sequence_ids: Collection[str]) -> None:
        self._foreign.intersection_update(sequence_ids)
        self.steps.retain(sequence_ids)

    def close(self) -> None:
        self.steps.close()

    def _propose(self, requests: Sequence[DraftRequest]) -> dict[str, tuple[int, ...]]:
        self.steps.sequences.begin_step()
        proposals = [each for asked in requests if self._can_read(each := self._begin(asked))]
        self.steps.free()
        late = [each for each in proposals if self.is_long(len(each.unread))]
        next((each for each in late if self._read_on(each)), None)
        self._guess([each for each in proposals if not self.is_long(len(each.unread))])
        return {each.asked.request.id: tuple(each.tokens) for each in proposals if each.tokens}

    def _can_read(self, proposal: Proposal) -> bool:
        """Whether it knows the ids of all that is unread, such as those of images."""
        asked, read = proposal.asked, len(proposal.drafted.tokens)
        if max(asked.tokens[read:], default=0) >= self._vocab:
            self._foreign.add(asked.request.id)
        return asked.request.id not in self._foreign

    def _begin(self, asked: DraftRequest) -> Proposal:
        drafted = self.steps.sequences.follow(asked.request, asked.tokens)
        return Proposal(asked, drafted, list(asked.tokens[len(drafted.tokens) :]))

    def _read_on(self, late: Proposal) -> bool:
        """One chunk of a long backlog, without what the step that proposes reads; False if it has no room."""
        count = min(self.steps.reading_rows, len(late.unread) - self._left)
        if not self.steps.sequences.grow(late.drafted, len(late.asked.tokens) + late.asked.count):
            return False
        self.steps.run([_rows(late, late.unread[:count], count)])
        del late.unread[:count]
        return True

    def _guess(self, running: list[Proposal]) -> None:
        """A token for each in every step, until all have what was wished or can go no further."""
        while running := [each for each in running if each.unread and not each.is_done]:
            for part in in_parts([len(each.unread) for each in running], self.steps.max_rows):
                self._pass(running[part])

    def _pass(self, proposals: Sequence[Proposal]) -> None:
        """Read what is unread and add a token to each proposal; one that cannot go on has nothing unread any more."""
        able = [each for each in proposals if self._has_room(each)]
        for each in proposals:
            each.unread = each.unread if each in able else []
        if not able:
            return
        logits = self.steps.run([_rows(each, each.unread, len(each.unread), (len(each.unread) - 1,)) for each in able])
        contexts = [_context(each, logits.codes.shape[-1]) for each in able]
        for each, token in zip(able, sample(logits, contexts), strict=True):
            each.unread = []
            if isinstance(token, SampledToken) and token.token_id < self._vocab:
                each.tokens.append(token.token_id)
                each.unread = [token.token_id]

    def _has_room(self, proposal: Proposal) -> bool:
        kept = len(proposal.unread) - self._masks
        return self.steps.sequences.grow(proposal.drafted, len(proposal.drafted.tokens) + kept)


def _rows(proposal: Proposal, tokens: Sequence[int], kept: int, logits: Sequence[int] = ()) -> DraftRows:
    coming = min(proposal.asked.request.params.max_tokens, FORESEEN_TOKENS)
    return DraftRows(proposal.drafted, tuple(tokens), kept, logits, coming)


def _context(proposal: Proposal, vocab: int) -> RowContext:
    """What the sampler must know for the next token; what the draft model has no id for is left out."""
    asked = proposal.asked
    params = known_params(asked.request.params, vocab)
    return RowContext(params, asked.seed, asked.request.prompt_ids, proposal.completion)


def known_params(params: SamplingParams, vocab: int) -> SamplingParams:
    """The parameters without what only the served model can do: its log-probabilities, grammar, ids beyond `vocab`."""
    biased = tuple((token, bias) for token, bias in params.logit_bias if token < vocab)
    stops, ends = (
        tuple(token for token in ids if token < vocab) for ids in (params.stop_token_ids, params.ignored_end_ids)
    )
    return replace(params, logprobs=None, grammar=None, logit_bias=biased, stop_token_ids=stops, ignored_end_ids=ends)


NOT_YET = -1  # no token: stands behind those that are read, so that the last of them is read as well


class BlockDraft(DraftModel):
    """A `DraftModel` that proposes up to the end of a block. vocab, max_context, most: as there, 0 = a whole block."""

    def __init__(self, steps: DraftSteps, spec: DiffusionSpec, max_context: int, vocab: int, most: int) -> None:
        length = spec.block_length
        super().__init__(steps, max_context - max_context % length, vocab, min(most or length, length))
        self._settings = Denoising(length, spec.mask_token, 1)
        self._left = self._masks = length

    def reach(self, tokens: int) -> int:
        """Up to the end of the block that so many tokens have got into."""
        length = self._settings.block_length
        return min(self.most, length - tokens % length)

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        """Tokens of whole blocks to read, and the block that it goes on with; None when the sequence is too long."""
        length = self._settings.block_length
        if len(tokens) + length > self._context or sequence_id in self._foreign:
            return None
        return self.steps.sequences.unread(sequence_id, self._whole(tokens)) - 1 + length

    def is_long(self, backlog: int) -> bool:
        """Whether more than two blocks are missing."""
        return backlog > min(max(16, 3 * self._settings.block_length), self.steps.max_rows)

    def proposal_ms(self, sequences: int, count: int) -> float:
        """One step, whatever the count: the block, and the one that was filled since."""
        return self.steps.price(2 * sequences * self._settings.block_length) if count else 0.0

    def _begin(self, asked: DraftRequest) -> Proposal:
        whole = self._whole(asked.tokens)
        drafted = self.steps.sequences.follow(asked.request, whole)
        known = asked.tokens[len(whole) - 1 :]
        masks = [self._settings.mask_token] * (self._settings.block_length - len(known))
        return Proposal(asked, drafted, [*whole[len(drafted.tokens) : -1], *known, *masks])

    def _guess(self, running: list[Proposal]) -> None:
        """One step for all, or as few as hold their rows."""
        able = [each for each in running if self._has_room(each)]
        for part in in_parts([len(each.unread) for each in able], self.steps.max_rows):
            self._predict(able[part])

    def _predict(self, proposals: Sequence[Proposal]) -> None:
        length, rows = self._settings.block_length, []
        for each in proposals:
            kept, count = len(each.unread) - length, len(each.unread)
            masked = tuple(range(kept + len(each.asked.tokens) % length, count))
            rows.append(_rows(each, each.unread, kept, masked))
        decoded = np.array(self.steps.run(rows).decoded())
        left = iter(decoded)
        for each, part in zip(proposals, rows, strict=True):
            for values in list(islice(left, len(part.logits))):
                if each.is_done or not self._add(each, values):
                    break

    def _add(self, proposal: Proposal, values: NDArray[np.float32]) -> bool:
        """The next token, from logits [V] of its own position."""
        asked, index = proposal.asked, len(proposal.completion)
        params = known_params(asked.request.params, len(values))
        found = predict_row(values, params, self._settings, index, uniform(asked.seed, index))
        if found is None or found.token >= self._vocab:
            return False
        proposal.tokens.append(found.token)
        return True

    def _whole(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of whole blocks, and something behind them."""
        return [*tokens[: len(tokens) - len(tokens) % self._settings.block_length], NOT_YET]
