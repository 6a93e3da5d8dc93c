"""The seam between the scheduler and what proposes tokens before a pass: a model that guesses by token or by block."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from engine.request import Request

NO_PROPOSALS: Mapping[str, tuple[int, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DraftWish:
    """Propose up to `count` tokens that follow `tokens`, the prompt's and the completion's, of one sequence."""

    request: Request
    seed: int
    tokens: Sequence[int]
    count: int


class Drafter(Protocol):
    """Proposes tokens. What it keeps of a sequence is its own and can be lost: it costs time, never a token."""

    @property
    def most(self) -> int:
        """Most tokens of one proposal; 0 = it proposes nothing."""

    def reach(self, tokens: int) -> int:
        """Most tokens of a proposal for a sequence that has so many."""

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        """Tokens it would have to read before it can propose what follows; None when it cannot follow so far."""

    def is_long(self, backlog: int) -> bool:
        """Whether so much is read over several steps, which propose nothing."""

    def reading_ms(self, tokens: int) -> float:
        """Milliseconds to read so many tokens of one sequence."""

    def proposal_ms(self, sequences: int, count: int) -> float:
        """Milliseconds of proposals of `count` tokens for each of so many sequences that it has read."""

    def propose(self, wishes: Sequence[DraftWish]) -> Mapping[str, tuple[int, ...]]:
        """Proposals by sequence id; nothing for a sequence that is still being read, or that is lost."""

    def retain(self, sequence_ids: Collection[str]) -> None:
        """Forget every other sequence."""

    def close(self) -> None:
        """Give memory and graphs back."""


class NoDrafter:
    """Where no draft model is set."""

    most = 0

    def reach(self, tokens: int) -> int:
        """None."""
        return 0

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        """It follows nobody."""
        return None

    def is_long(self, backlog: int) -> bool:
        """Never asked."""
        return False

    def reading_ms(self, tokens: int) -> float:
        """Nothing is read."""
        return 0.0

    def proposal_ms(self, sequences: int, count: int) -> float:
        """Nothing is proposed."""
        return 0.0

    def propose(self, wishes: Sequence[DraftWish]) -> Mapping[str, tuple[int, ...]]:
        """Nothing."""
        return NO_PROPOSALS

    def retain(self, sequence_ids: Collection[str]) -> None:
        """Nothing is kept."""

    def close(self) -> None:
        """Nothing to give back."""
