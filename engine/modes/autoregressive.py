"""One token a pass, but for guesses that somebody else makes."""

from collections.abc import Sequence

from engine.modes.mode import Outcome
from engine.modes.verification import verify


class Autoregressive:
    """Never guesses; keeps every row."""

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """No guesses."""
        return ()

    def resolve(self, rows: int, draft: tuple[int, ...], sampled: tuple[int, ...]) -> Outcome:
        """All rows are real tokens, but for guesses from elsewhere: they are kept as far as they are right."""
        return verify(rows, draft, sampled)
