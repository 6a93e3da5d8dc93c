"""How many guesses are worth their price. Pure arithmetic: rows are worth tokens, passes cost milliseconds.

A guess is right only if those before it are. At a rate r the i-th one is worth r ** i tokens, every other useful row of
the pass one. So many guesses are taken that the pass yields most per millisecond: with nothing else in it a few likely
ones pay; the more rows it has for others, the dearer the milliseconds that a further row takes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.speculation.acceptance import GuessKind

LEAST_WORTH = 0.02  # tokens; even where a row is free, the host has to sample it
PRICE_MARGIN = 1.1  # on what guesses add to a pass: prices are measured, and a machine is never quite as it was
TRIAL_RATE = 0.9  # assumed where guesses are tried again, in the hope that the text has changed
TRIAL_GUESSES = 2

PassPrice = Callable[[int], float]  # milliseconds of a pass with so many rows more; growing, never 0


@dataclass(frozen=True, slots=True)
class Offer:
    """Guesses for one sequence, one after the other, each expected to be right at `rate` if those before it are."""

    sequence_id: str
    kind: GuessKind
    tokens: tuple[int, ...]
    rate: float

    @property
    def worth(self) -> float:
        """Tokens that all of it is expected to give."""
        return sum(worths(self.rate, len(self.tokens)))


@dataclass(frozen=True, slots=True)
class DraftPrice:
    """What proposals of a draft model cost before the pass, in milliseconds for so many tokens of each sequence."""

    rates: tuple[float, ...]
    milliseconds: PassPrice
    most: int


def worths(rate: float, count: int) -> list[float]:
    """Expected tokens of the first `count` guesses, those left out that are as good as never right."""
    found = (rate**place for place in range(1, count + 1))
    return [worth for worth in found if worth >= LEAST_WORTH]


def best_rows(
    worth_of: Sequence[float], useful: int, most: int, price: PassPrice, before_ms: float
) -> tuple[int, float]:
    """How many guess rows make a pass best, and its tokens per millisecond.

    worth_of: tokens of each row that may be added, the most valuable first. useful: rows of the pass without them.
    before_ms: what was spent on them beforehand.
    """
    base_ms = price(0)
    best, tokens = (0, useful / (base_ms + before_ms)), float(useful)
    for rows, worth in enumerate(worth_of[:most], 1):
        tokens += worth
        value = tokens / (base_ms + before_ms + PRICE_MARGIN * (price(rows) - base_ms))
        if value > best[1]:
            best = (rows, value)
    return best


def least_rate(useful: int, most: int, price: PassPrice) -> float:
    """A rate from which on a guess may pay; at a lower one none does, be it alone or among the most there may be."""
    if most < 1:
        return 1.0
    base_ms = price(0)
    row_ms = min((price(rows) - base_ms) / rows for rows in (1, most))
    return PRICE_MARGIN * row_ms * useful / base_ms


def take(offers: Sequence[Offer], useful: int, most: int, price: PassPrice) -> list[int]:
    """How many guesses of each offer a pass takes, from the first, of `most` rows that it may add in all."""
    rows = [(worth, index) for index, offer in enumerate(offers) for worth in worths(offer.rate, len(offer.tokens))]
    rows.sort(key=lambda row: -row[0])
    count, _ = best_rows([worth for worth, _ in rows], useful, most, price, 0.0)
    taken = [0] * len(offers)
    for _, index in rows[:count]:
        taken[index] += 1
    return taken


def draft_length(
    draft: DraftPrice, instead: Sequence[Offer], beside: Sequence[Offer], useful: int, most: int, price: PassPrice
) -> int:
    """How many tokens a draft model shall propose for each of its sequences before a pass; 0 = it does not pay.

    instead: what these sequences could take without it. beside: offers for the others.
    """

    def value(count: int) -> float:
        drafted = [worth for rate in draft.rates for worth in worths(rate, count)]
        others = [
            worth for offer in (*beside, *(() if count else instead)) for worth in worths(offer.rate, len(offer.tokens))
        ]
        before_ms = draft.milliseconds(count) if count else 0.0
        return best_rows(sorted([*drafted, *others], reverse=True), useful, most, price, before_ms)[1]

    return max(range(draft.most + 1), key=lambda count: (value(count), -count))
