"""The seam between the scheduler and ways to generate. A mode sees tokens only: no arrays, no columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a segment's rows came to: how many of them, counted from the first, are kept, and the tokens that follow."""

    kept_rows: int
    new_tokens: tuple[int, ...]


class Mode(Protocol):
    """One way to generate."""

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """Guess at most `limit` tokens after `tokens`; each costs a row of the pass."""

    def resolve(self, rows: int, draft: tuple[int, ...], sampled: tuple[int, ...]) -> Outcome:
        """Judge `rows` rows, the last len(draft) of them guesses; `sampled` are the tokens of the sampled rows."""
