"""What calibration saw of an activation, text by text, and the range that is made of it."""

from collections.abc import Callable
from dataclasses import dataclass

# Room for what the calibration text did not show; at 16 bits it costs next to nothing.
MARGIN = 1.1


@dataclass(frozen=True, slots=True)
class Range:
    """Smallest and largest value."""

    low: float
    high: float

    def joined(self, other: "Range") -> "Range":
        """The range that holds both."""
        return Range(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True, slots=True)
class Observed:
    """Extremes of each text, in their order, and how many values a text has: all that is kept of an activation."""

    texts: tuple[Range, ...]
    values: int

    @property
    def extremes(self) -> Range:
        """Of all texts."""
        return Range(min(text.low for text in self.texts), max(text.high for text in self.texts))

    def joined(self, other: "Observed") -> "Observed":
        """Of two activations that share an encoding; ValueError unless the same texts were seen."""
        texts = tuple(mine.joined(theirs) for mine, theirs in zip(self.texts, other.texts, strict=True))
        return Observed(texts, self.values + other.values)


ChooseRange = Callable[[Observed], Range]


def extreme_range(seen: Observed) -> Range:
    """What was seen, with a margin."""
    return Range(seen.extremes.low * MARGIN, seen.extremes.high * MARGIN)
