"""A block-diffusion model as a draft: one pass proposes the rest of a block.

Whole blocks of a sequence are read and kept; the block that it has got into follows them with masks for what is
missing, and the pass predicts all of them at once. Nothing of that block is kept.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import DiffusionSpec
from engine.drafts.draft_model import DraftModel, Proposal, known_params
from engine.drafts.draft_passes import DraftPasses, DraftRows, in_parts
from engine.request import Denoising
from engine.sampling.denoising import predict_row
from engine.sampling.sampler import uniform
from engine.speculation.drafter import DraftWish

NOT_YET = -1  # no token: stands behind those that are read, so that the last of them is read as well


class BlockDraft(DraftModel):
    """A `DraftModel` that proposes up to the end of a block. vocab, max_context, most: as there, 0 = a whole block."""

    def __init__(self, passes: DraftPasses, spec: DiffusionSpec, max_context: int, vocab: int, most: int) -> None:
        length = spec.block_length
        super().__init__(passes, max_context - max_context % length, vocab, min(most or length, length))
        self._settings = Denoising(length, spec.mask_token, 1)

    def reach(self, tokens: int) -> int:
        """Up to the end of the block that so many tokens have got into."""
        length = self._settings.block_length
        return min(self.most, length - tokens % length)

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        """Tokens of whole blocks to read, and the block that it goes on with; None when the sequence is too long."""
        length = self._settings.block_length
        if len(tokens) + length > self._context:
            return None
        return self.passes.followers.unread(sequence_id, self._whole(tokens)) - 1 + length

    def is_long(self, backlog: int) -> bool:
        """Whether more than two blocks are missing."""
        return backlog > min(max(16, 3 * self._settings.block_length), self.passes.max_rows)

    def proposal_ms(self, sequences: int, count: int) -> float:
        """One pass, whatever the count: the block, and the one that was filled since."""
        return self.passes.price(2 * sequences * self._settings.block_length) if count else 0.0

    def _begin(self, wish: DraftWish) -> Proposal:
        whole = self._whole(wish.tokens)
        follower = self.passes.followers.follow(wish.request, whole)
        known = wish.tokens[len(whole) - 1 :]
        masks = [self._settings.mask_token] * (self._settings.block_length - len(known))
        return Proposal(wish, follower, [*whole[len(follower.tokens) : -1], *known, *masks])

    def _read_on(self, late: Proposal) -> bool:
        """One chunk of whole blocks, the one with masks left out."""
        count = min(self.passes.reading_rows, len(late.unread) - self._settings.block_length)
        if not self.passes.followers.grow(late.follower, len(late.wish.tokens)):
            return False
        self.passes.run([self._rows(late, late.unread[:count], count)])
        del late.unread[:count]
        return True

    def _guess(self, running: list[Proposal]) -> None:
        """One pass for all, or as few as hold their rows."""
        able = [each for each in running if self._has_room(each)]
        for part in in_parts([len(each.unread) for each in able], self.passes.max_rows):
            self._predict(able[part])

    def _predict(self, proposals: Sequence[Proposal]) -> None:
        length = self._settings.block_length
        rows = [self._rows(each, each.unread, len(each.unread) - length, self._masked(each)) for each in proposals]
        decoded = np.array(self.passes.run(rows).decoded())
        start = 0
        for each, part in zip(proposals, rows, strict=True):
            for values in decoded[start : start + len(part.logits)]:
                if each.is_done or not self._add(each, values):
                    break
            start += len(part.logits)

    def _add(self, proposal: Proposal, values: NDArray[np.float32]) -> bool:
        """The next token, from logits [V] of its own position."""
        wish, index = proposal.wish, len(proposal.completion)
        params = known_params(wish.request.params, len(values))
        found = predict_row(values, params, self._settings, index, uniform(wish.seed, index))
        if found is None or found.token >= self._vocab:
            return False
        proposal.tokens.append(found.token)
        return True

    def _rows(self, proposal: Proposal, tokens: Sequence[int], kept: int, logits: Sequence[int] = ()) -> DraftRows:
        return DraftRows(proposal.follower, tuple(tokens), kept, logits, proposal.wish.request.params.max_tokens)

    def _masked(self, proposal: Proposal) -> tuple[int, ...]:
        """Rows of the block that are masked."""
        rows, length = len(proposal.unread), self._settings.block_length
        return tuple(range(rows - length + len(proposal.wish.tokens) % length, rows))

    def _has_room(self, proposal: Proposal) -> bool:
        kept = len(proposal.unread) - self._settings.block_length
        return self.passes.followers.grow(proposal.follower, len(proposal.follower.tokens) + kept)

    def _whole(self, tokens: Sequence[int]) -> list[int]:
        """The tokens of whole blocks, and something behind them."""
        return [*tokens[: len(tokens) - len(tokens) % self._settings.block_length], NOT_YET]
