"""A bound on thinking: when a reasoning block has had its tokens, the tokens that close it are forced.

A pure function of the completion so far, so that it holds for guesses, preemption and the next worker alike.
"""

from collections.abc import Sequence

from engine.request import ThinkingBudget


def forced_token(budget: ThinkingBudget, completion: Sequence[int]) -> int | None:
    """The token that must come next, None while the model is free."""
    start = _start(budget, completion)
    if start is None or len(completion) - start < budget.tokens:
        return None
    closing = budget.closing
    # A model that closes in time, or was made to, has done so before this place.
    if _find(completion, closing, start, start + budget.tokens + 2 * len(closing)) is not None:
        return None
    for size in range(len(closing) - 1, 0, -1):
        if len(completion) - start >= size and tuple(completion[-size:]) == closing[:size]:
            return closing[size]
    return closing[0]


def _start(budget: ThinkingBudget, completion: Sequence[int]) -> int | None:
    """Where the reasoning begins: at once if the prompt opened it, else behind the opening tokens."""
    if not budget.opening:
        return 0
    # An answer that does not open with its reasoning has none.
    found = _find(completion, budget.opening, 0, len(budget.opening) + budget.opens_within)
    return None if found is None else found + len(budget.opening)


def _find(tokens: Sequence[int], wanted: tuple[int, ...], start: int, stop: int) -> int | None:
    """First place in [start, stop) where `wanted` begins and ends."""
    last = min(stop, len(tokens)) - len(wanted) + 1
    place = start
    while place < last:
        try:
            place = tokens.index(wanted[0], place, last)
        except ValueError:
            return None
        if tuple(tokens[place : place + len(wanted)]) == wanted:
            return place
        place += 1
    return None
