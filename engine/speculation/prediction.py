"""Guesses from what the caller expects the answer to be: what follows in it where the answer so far matches it."""

from collections.abc import Sequence

LONGEST, SHORTEST = 8, 2  # tokens that have to match


def continued_at(prediction: Sequence[int], completion: Sequence[int], behind: int) -> int | None:
    """Index in the prediction of what should come next; None where the end of the answer matches nothing.

    behind: index behind the match before. Of the longest matches the first one from there on counts, else the last
    one. An answer that has not begun matches the beginning.
    """
    if not completion:
        return 0 if prediction else None
    last = completion[-1]
    ends = [index + 1 for index, token in enumerate(prediction[:-1]) if token == last]
    sizes = [_matching(prediction, end, completion) for end in ends]
    longest = max(sizes, default=0)
    if longest < min(SHORTEST, len(completion)):
        return None
    found = [end for end, size in zip(ends, sizes, strict=True) if size == longest]
    return next((end for end in found if end >= behind), found[-1])


def _matching(prediction: Sequence[int], end: int, completion: Sequence[int]) -> int:
    """How many tokens before `end` are the last ones of the completion."""
    most = min(LONGEST, end, len(completion))
    return next((size for size in range(most) if prediction[end - 1 - size] != completion[-1 - size]), most)
