"""Speculation without a model: guess that the text goes on as it did after the last same words.

Method: prompt lookup decoding (Saxena, 2023). Lossless: a guess is kept only where the sampler chose the same token.
"""

from collections.abc import Sequence

from engine.modes.mode import Outcome
from engine.modes.verification import verify


class PromptLookup:
    """Guesses from the sequence's own tokens: the longest n-gram of `longest` down to `shortest` tokens that recurs."""

    def __init__(self, longest: int = 4, shortest: int = 2, window: int = 1024) -> None:
        self.longest = longest
        self.shortest = shortest
        self.window = window

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """Tokens that followed the latest earlier occurrence of the current ending."""
        recent = list(tokens[-self.window :])
        for size in range(min(self.longest, len(recent) - 1), self.shortest - 1, -1):
            ending = recent[-size:]
            for start in range(len(recent) - size - 1, -1, -1):
                if recent[start : start + size] == ending:
                    return tuple(recent[start + size : start + size + limit])
        return ()

    def resolve(self, rows: int, draft: tuple[int, ...], sampled: tuple[int, ...]) -> Outcome:
        """Guesses are kept as far as they are right."""
        return verify(rows, draft, sampled)
