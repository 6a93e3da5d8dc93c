"""One token a pass."""

from collections.abc import Sequence

from engine.modes.mode import Outcome


class Autoregressive:
    """Never guesses; keeps every row."""

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """No guesses."""
        return ()

    def resolve(self, rows: int, draft: tuple[int, ...], sampled: tuple[int, ...]) -> Outcome:
        """All rows are real tokens; the sampled ones are new."""
        return Outcome(rows, sampled)
