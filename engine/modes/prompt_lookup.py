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
        back = list(tokens[-self.window :])[
            ::-1
        ]  # searched from its end, by `index`: every pass asks for every sequence
        best, found, place = self.shortest - 1, 0, 0
        while best < self.longest:
            try:
                place = back.index(back[0], place + 1)
            except (ValueError, IndexError):
                break
            most = min(self.longest, len(back) - place)
            size = next((size for size in range(1, most) if back[place + size] != back[size]), most)
            if size > best:
                best, found = size, place
        return tuple(back[max(0, found - limit) : found][::-1])

    def resolve(self, rows: int, draft: tuple[int, ...], sampled: tuple[int, ...]) -> Outcome:
        """Guesses are kept as far as they are right."""
        return verify(rows, draft, sampled)
