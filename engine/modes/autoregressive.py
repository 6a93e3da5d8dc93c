"""One token a pass."""

from collections.abc import Sequence

from engine.modes.mode import Outcome


class Autoregressive:
    """Never guesses; keeps every row."""

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """No guesses."""
        return ()

    def resolve(self, rows: int, draft: tuple[int, ...], picks: tuple[int, ...]) -> Outcome:
        """All rows are real tokens; the picks are the new ones."""
        return Outcome(rows, picks)
