"""What a run says: word errors, how fast, and whether the bars hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

MISSED = "missed"  # a bar
WORST_POINTS, SLOWEST, LEAST_TOGETHER = 0.5, 1.0, 1.5


@dataclass(frozen=True, slots=True)
class Listener:
    """One program. errors: wrong words of all. alone: seconds of each round one by one; together: four at once."""

    errors: int
    alone: Sequence[float]
    together: Sequence[float]


def wrong_words(said: str, written: str) -> tuple[int, int]:
    """Words that are replaced, missing or too many, and how many were said; as Whisper's own normaliser spells them."""
    normal = EnglishTextNormalizer({})  # type: ignore[no-untyped-call]
    wanted, found = normal(said).split(), normal(written).split()
    row = list(range(len(found) + 1))
    for number, word in enumerate(wanted, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(found, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1], len(wanted)


def table(own: Listener, other: Listener, words: int, seconds: float, seconds_together: float) -> str:
    """Markdown. words: that were said. seconds: of sound one by one, and of what is sent four at once."""
    points = 100 * (own.errors - other.errors) / words
    alone = median(a / b for a, b in zip(own.alone, other.alone, strict=True))
    together = median(b / a for a, b in zip(own.together, other.together, strict=True))
    rows = [
        ("wrong words, %", f"{100 * own.errors / words:.2f}", f"{100 * other.errors / words:.2f}",
         f"{points:+.2f} points", f"<= {WORST_POINTS}", points <= WORST_POINTS),
        ("seconds for one of sound", f"{median(own.alone) / seconds:.4f}", f"{median(other.alone) / seconds:.4f}",
         f"{alone:.2f}", f"<= {SLOWEST}", alone <= SLOWEST),
        ("4 at once, seconds of sound in one", f"{seconds_together / median(own.together):.1f}",
         f"{seconds_together / median(other.together):.1f}", f"{together:.2f}", f">= {LEAST_TOGETHER}",
         together >= LEAST_TOGETHER),
    ]  # fmt: skip
    head = "| | hexserve | faster-whisper | ratio | bar | |\n|---|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} | {'' if holds else MISSED} |\n" for *row, holds in rows)
