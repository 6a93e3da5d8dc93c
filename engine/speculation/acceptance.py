"""How often guesses were right: of each kind over all sequences, and of one sequence. What is recent counts more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType


class GuessKind(StrEnum):
    """Where a guess comes from."""

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
FIRST_PAUSE, LONGEST_PAUSE = 8, 128  # passes between attempts that are expected not to pay


@dataclass(slots=True)
class Acceptance:
    """Decayed counts of judged guesses: those up to the first wrong one. Of those behind it nothing is known."""

    decay: float
    right: float = 0.0
    judged: float = 0.0

    def observe(self, right: int, was_wrong: bool) -> None:
        """So many guesses were right, and then one was wrong or there was no other."""
        for outcome in (*(1.0 for _ in range(right)), *((0.0,) if was_wrong else ())):
            self.right = self.right * self.decay + outcome
            self.judged = self.judged * self.decay + 1.0

    def rate(self, prior: float) -> float:
        """The expected share of right guesses, 0 to 1, where `prior` is expected without any."""
        return (self.right + PRIOR_WEIGHT * prior) / (self.judged + PRIOR_WEIGHT)


@dataclass(slots=True)
class Retries:
    """When to try again what did not pay: after a pause that doubles while attempts go wrong."""

    pause: int = FIRST_PAUSE
    waited: int = 0

    @property
    def is_due(self) -> bool:
        """Whether the pause is over."""
        return self.waited >= self.pause

    def pass_over(self) -> None:
        """A pass had guesses to take and took none of them."""
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
    """What is known of one sequence's guesses. `scheduling/guesses.py` is the only writer.

    taken: kind of the guesses in the pass that runs. prediction_at: index in the prediction behind its last match.
    """

    kinds: dict[GuessKind, KindRecord] = field(default_factory=lambda: {kind: KindRecord() for kind in GuessKind})
    taken: GuessKind = GuessKind.LOOKUP
    prediction_at: int = 0
