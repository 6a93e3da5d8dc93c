"""A block of tokens made out of masks, pass by pass. Tokens only: no arrays, no columns.

A sequence is cut into blocks of B positions. Rows of a block see each other both ways and every block before. Of a
block that is not settled no key and no value is kept; a settled one is computed once more, in the pass that also
begins with the next, and then kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from engine.modes.unmasking import Prediction, unmask
from engine.request import Denoising


class BlockStatus(StrEnum):
    """How far a block of a sequence is."""

    PENDING = "pending"  # behind the one that is denoised: nothing is known of it
    ACTIVE = "active"  # being denoised: some of its tokens are masked
    SETTLED = "settled"  # all tokens are known, keys and values are not kept yet; a block of the prompt begins here
    FROZEN = "frozen"  # keys and values are kept; nothing of it changes any more


NEXT_STATUS: dict[BlockStatus, frozenset[BlockStatus]] = {
    BlockStatus.PENDING: frozenset({BlockStatus.ACTIVE}),
    BlockStatus.ACTIVE: frozenset({BlockStatus.SETTLED}),
    BlockStatus.SETTLED: frozenset({BlockStatus.FROZEN}),
    BlockStatus.FROZEN: frozenset({BlockStatus.SETTLED}),  # its sequence gave its columns back
}


def block_status(index: int, block_length: int, tokens: int, computed: int) -> BlockStatus:
    """Of the block `index` of a sequence with so many known and so many computed tokens."""
    end = (index + 1) * block_length
    if end <= computed:
        return BlockStatus.FROZEN
    if end <= tokens:
        return BlockStatus.SETTLED
    return BlockStatus.ACTIVE if index == tokens // block_length else BlockStatus.PENDING


@dataclass(slots=True)
class ActiveBlock:
    """The block of a sequence that is being denoised.

    known: how many of its first tokens the sequence has already: the rest of the prompt behind its last whole block.
    step: passes that have denoised it. settled: by position in the block, what was chosen.
    """

    settings: Denoising
    known: int
    step: int = 0
    settled: dict[int, Prediction] = field(default_factory=dict)

    @property
    def masked(self) -> tuple[int, ...]:
        """Positions in the block whose tokens are not chosen yet."""
        return tuple(place for place in range(self.known, self.settings.block_length) if place not in self.settled)

    def row_tokens(self, known: Sequence[int]) -> tuple[int, ...]:
        """The tokens of the block's rows: what is known of it, then what is settled, masks elsewhere."""
        mask = self.settings.mask_token
        rest = range(self.known, self.settings.block_length)
        return (*known, *(self.settled[place].token if place in self.settled else mask for place in rest))

    def take(self, predictions: Sequence[Prediction]) -> None:
        """Settle some of the masked tokens; `predictions` are of all of them, in order."""
        masked = self.masked
        for index in unmask(self.settings, self.step, predictions):
            self.settled[masked[index]] = predictions[index]
        self.step += 1

    @property
    def leading(self) -> tuple[Prediction, ...]:
        """What is settled before the first mask: these tokens are final, and so is their order."""
        masked = self.masked
        end = masked[0] if masked else self.settings.block_length
        return tuple(self.settled[place] for place in range(self.known, end))

    def begin(self, known: int) -> None:
        """Denoise another block, of which the sequence has `known` tokens."""
        self.known, self.step = known, 0
        self.settled.clear()
