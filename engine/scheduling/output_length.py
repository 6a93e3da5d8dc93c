"""An estimate of how long answers get, so that a pool takes in only sequences that it can hold to their ends."""

from collections.abc import Iterable

from engine.scheduling.admission import Capacity, pages_for
from engine.scheduling.sequence import Sequence

OBSERVED_SHARE = 0.05


class OutputLengthEstimate:
    """A first guess of an answer's tokens that slowly follows what answers had; 0 expects and learns nothing."""

    def __init__(self, first_guess: int, capacity: Capacity, page_columns: int) -> None:
        self.tokens = float(first_guess)
        self._capacity = capacity
        self._page_columns = page_columns

    def observe(self, tokens: int) -> None:
        """An answer has ended."""
        if self.tokens and tokens:
            self.tokens += OBSERVED_SHARE * (tokens - self.tokens)

    def growth(self, sequence: Sequence) -> int:
        """Pages that a sequence is still expected to take, beyond those of its tokens."""
        rest = min(round(self.tokens) - sequence.generated, room(sequence, self._capacity))
        tokens = len(sequence.tokens)
        return pages_for(tokens + max(1, rest) - 1, self._page_columns) - pages_for(tokens, self._page_columns)

    def reserved(self, newcomer: Sequence, running: Iterable[Sequence]) -> int:
        """Pages to keep free when a sequence is admitted, at least one for each running one; 0 when none runs."""
        others = [max(1, self.growth(sequence)) for sequence in running if not sequence.is_pooled]
        return self.growth(newcomer) + sum(others) if others else 0


def room(sequence: Sequence, capacity: Capacity) -> int:
    """Tokens a sequence may still get."""
    left = sequence.request.params.max_tokens - sequence.generated
    return min(left, capacity.tokens_per_sequence - len(sequence.tokens))
