"""Guesses of coming tokens: where they come from, how often they were right, what they are worth, which are kept.
How many guesses are worth their price. Pure arithmetic: rows are worth tokens, steps cost milliseconds.
A guess is right only if those before it are. At a rate r the i-th one is worth r ** i tokens, every other useful row of
the step one. So many guesses are taken that the step yields most per millisecond: with nothing else in it a few likely
ones pay; the more rows it has for others, the dearer the milliseconds that a further row takes.
Speculation without a model: guess that the text goes on as it did after the last same words.
Method: prompt lookup decoding (Saxena, 2023). Lossless: a guess is kept only where the sampler chose the same token."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from engine.request import Request


class GuessKind(StrEnum):
    LOOKUP = "lookup"  # the sequence's own tokens
    PREDICTION = "prediction"  # what the caller expects the answer to be
    DRAFT = "draft"  # a draft model
    FORECAST = "forecast"  # the model's own forecast rows


# Before anything was judged: the share of guesses that are right, those before them being right.
FIRST_RATES: Mapping[GuessKind, float] = MappingProxyType(
    {GuessKind.LOOKUP: 0.5, GuessKind.PREDICTION: 0.8, GuessKind.DRAFT: 0.7, GuessKind.FORECAST: 0.4}
)
PRIOR_WEIGHT = 2.0  # guesses that a prior counts for
KIND_DECAY, SEQUENCE_DECAY = 0.99, 0.8  # of what is remembered, with each judged guess
FIRST_PAUSE, LONGEST_PAUSE = 8, 128  # steps between attempts that are expected not to pay


@dataclass(slots=True)
class Acceptance:
    """Decayed counts of judged guesses: those up to the first wrong one. Of those behind it nothing is known."""

    decay: float
    right: float = 0.0
    judged: float = 0.0

    def observe(self, right: int, was_wrong: bool) -> None:
        """So many guesses were right, and then one was wrong or there was no other."""
        for outcome in [1.0] * right + [0.0] * was_wrong:
            self.right = self.right * self.decay + outcome
            self.judged = self.judged * self.decay + 1.0

    def rate(self, prior: float) -> float:
        return (self.right + PRIOR_WEIGHT * prior) / (self.judged + PRIOR_WEIGHT)


@dataclass(slots=True)
class Retries:
    """When to try again what did not pay: after a pause that doubles while attempts go wrong."""

    pause: int = FIRST_PAUSE
    waited: int = 0

    @property
    def is_due(self) -> bool:
        return self.waited >= self.pause

    def step_over(self) -> None:
        """A step had guesses to take and took none of them."""
        self.waited += 1

    def tried(self, right: int) -> None:
        """Guesses were judged. After one that was right the next attempt follows at once, if it needs to be one."""
        self.pause = FIRST_PAUSE if right else min(2 * self.pause, LONGEST_PAUSE)
        self.waited = self.pause if right else 0


@dataclass(slots=True)
class KindRecord:
    """One kind of guess in one sequence."""

    acceptance: Acceptance = field(default_factory=lambda: Acceptance(SEQUENCE_DECAY))
    retries: Retries = field(default_factory=Retries)


@dataclass(slots=True)
class GuessRecord:
    """What is known of one sequence's guesses. `core/guesses.py` is the only writer.
    taken: kind of the guesses in the step that runs. prediction_at: index in the prediction behind its last match."""

    kinds: dict[GuessKind, KindRecord] = field(default_factory=lambda: {kind: KindRecord() for kind in GuessKind})
    taken: GuessKind = GuessKind.LOOKUP
    prediction_at: int = 0


LEAST_WORTH = 0.02  # tokens; even where a row is free, the host has to sample it
PRICE_MARGIN = 1.3  # on what guesses add to a step: prices are measured, and a machine is never quite as it was
TRIAL_RATE = 0.9  # assumed where guesses are tried again, in the hope that the text has changed
TRIAL_GUESSES = 2

StepPrice = Callable[[int], float]  # milliseconds of a step with so many rows more; growing, never 0


@dataclass(frozen=True, slots=True)
class Offer:
    """Guesses for one sequence, one after the other, each expected to be right at `rate` if those before it are."""

    sequence_id: str
    kind: GuessKind
    tokens: tuple[int, ...]
    rate: float

    @property
    def worth(self) -> float:
        return sum(worths(self.rate, len(self.tokens)))


def worths(rate: float, count: int) -> list[float]:
    """Expected tokens of the first `count` guesses, those left out that are as good as never right."""
    return [worth for place in range(1, count + 1) if (worth := rate**place) >= LEAST_WORTH]


def best_rows(
    worth_of: Sequence[float], useful: int, most: int, price: StepPrice, before_ms: float
) -> tuple[int, float]:
    """How many guess rows make a step best, and its tokens per millisecond.
    worth_of: tokens of each row that may be added, the most valuable first. useful: rows of the step without them.
    before_ms: what was spent on them beforehand."""
    base_ms = price(0)
    best, tokens = (0, useful / (base_ms + before_ms)), float(useful)
    for rows, worth in enumerate(worth_of[:most], 1):
        tokens += worth
        value = tokens / (base_ms + before_ms + PRICE_MARGIN * (price(rows) - base_ms))
        if value > best[1]:
            best = (rows, value)
    return best


def least_rate(useful: int, most: int, price: StepPrice) -> float:
    """A rate from which on a guess may pay; at a lower one none does, be it alone or among the most there may be."""
    if most < 1:
        return 1.0
    base_ms = price(0)
    row_ms = min((price(rows) - base_ms) / rows for rows in (1, most))
    return PRICE_MARGIN * row_ms * useful / base_ms


def take(offers: Sequence[Offer], useful: int, most: int, price: StepPrice) -> list[int]:
    """How many guesses of each offer a step takes, from the first, of `most` rows that it may add in all."""
    rows = [(worth, index) for index, offer in enumerate(offers) for worth in worths(offer.rate, len(offer.tokens))]
    rows.sort(key=lambda row: -row[0])
    count, _ = best_rows([worth for worth, _ in rows], useful, most, price, 0.0)
    taken = Counter(index for _, index in rows[:count])
    return [taken[index] for index in range(len(offers))]


def draft_length(
    sequences: Collection[tuple[float, int]],
    draft_ms: StepPrice,
    instead: Sequence[Offer],
    beside: Sequence[Offer],
    useful: int,
    most: int,
    price: StepPrice,
) -> int:
    """How many tokens a draft model shall propose for each of its sequences before a step; 0 = it does not pay.
    sequences: of each the rate, and the most tokens that can be proposed for it. draft_ms: milliseconds before the step
    for so many tokens of each. instead: what these sequences could take without it. beside: offers for the others."""

    def value(count: int) -> float:
        drafted = [worth for rate, most in sequences for worth in worths(rate, min(count, most))]
        others = [
            worth for offer in (*beside, *(() if count else instead)) for worth in worths(offer.rate, len(offer.tokens))
        ]
        before_ms = draft_ms(count) if count else 0.0
        return best_rows(sorted([*drafted, *others], reverse=True), useful, most, price, before_ms)[1]

    longest = max((most for _, most in sequences), default=0)
    return max(range(longest + 1), key=lambda count: (value(count), -count))


LONGEST, SHORTEST = 8, 2  # tokens that have to match


def continued_at(prediction: Sequence[int], completion: Sequence[int], behind: int) -> int | None:
    """Index in the prediction of what should come next; None where the end of the answer matches nothing.
    behind: index behind the match before. Of the longest matches the first one from there on counts, else the last one.
    An answer that has not begun matches the beginning."""
    if not completion:
        return 0 if prediction else None
    ends = [index + 1 for index, token in enumerate(prediction[:-1]) if token == completion[-1]]
    sizes = {end: _matching(prediction, end, completion) for end in ends}
    longest = max(sizes.values(), default=0)
    if longest < min(SHORTEST, len(completion)):
        return None
    found = [end for end, size in sizes.items() if size == longest]
    return next((end for end in found if end >= behind), found[-1])


def _matching(prediction: Sequence[int], end: int, completion: Sequence[int]) -> int:
    """How many tokens before `end` are the last ones of the completion."""
    most = min(LONGEST, end, len(completion))
    return next((size for size in range(most) if prediction[end - 1 - size] != completion[-1 - size]), most)


NO_PROPOSALS: Mapping[str, tuple[int, ...]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """Propose up to `count` tokens that follow `tokens`, the prompt's and the completion's, of one sequence."""

    request: Request
    seed: int
    tokens: Sequence[int]
    count: int


class Drafter:
    """Proposes tokens; this one none, where no draft model is set.
    What it keeps of a sequence is its own and can be lost: it costs time, never a token."""

    most = 0  # tokens of one proposal; 0 = it proposes nothing

    def reach(self, tokens: int) -> int:
        """Most tokens of a proposal for a sequence that has so many."""
        return 0

    def backlog(self, sequence_id: str, tokens: Sequence[int]) -> int | None:
        """Tokens it would have to read before it can propose what follows; None when it cannot follow so far."""
        return None

    def is_long(self, backlog: int) -> bool:
        """Whether so much is read over several steps, which propose nothing."""
        return False

    def reading_ms(self, tokens: int) -> float:
        """Milliseconds to read so many tokens of one sequence."""
        return 0.0

    def proposal_ms(self, sequences: int, count: int) -> float:
        """Milliseconds of proposals of `count` tokens for each of so many sequences that it has read."""
        return 0.0

    def propose(self, requests: Sequence[DraftRequest]) -> Mapping[str, tuple[int, ...]]:
        """Proposals by sequence id; nothing for a sequence that is still being read, or that is lost."""
        return NO_PROPOSALS

    def retain(self, sequence_ids: Collection[str]) -> None:
        """Forget every other sequence."""

    def close(self) -> None:
        """Give memory and graphs back."""


class PromptLookup:
    """Guesses from the sequence's own tokens: the longest n-gram of `longest` down to `shortest` tokens that recurs."""

    def __init__(self, longest: int = 4, shortest: int = 2, window: int = 1024) -> None:
        self.longest = longest
        self.shortest = shortest
        self.window = window

    def propose(self, tokens: Sequence[int], limit: int) -> tuple[int, ...]:
        """Tokens that followed the latest earlier occurrence of the current ending."""
        # Searched from its end, by `index`: every step asks for every sequence.
        back = list(tokens[-self.window :])[::-1]
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


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a segment's rows came to: how many of them, counted from the first, are kept, and the tokens that follow."""

    kept_rows: int
    new_tokens: tuple[int, ...]


def verify(rows: int, draft: tuple[int, ...], sampled: tuple[int, ...]) -> Outcome:
    """Keep guesses up to the first that differs from the token sampled in its place, which replaces it.
    rows: all of the segment, its last ones the guesses. sampled: a token for the row before each guess and the last."""
    accepted = next((at for at, guess in enumerate(draft) if guess != sampled[at]), len(draft))
    return Outcome(rows - len(draft) + accepted, sampled[: accepted + 1])
