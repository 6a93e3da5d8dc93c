"""What a run says: word errors, how fast, and whether the bars hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from engine.compile.check.parity import Interval

MISSED = "missed"  # a bar
WORST_POINTS, SLOWEST, LEAST_TOGETHER = 0.5, 1.0, 1.5


@dataclass(frozen=True, slots=True)
class Listener:
    """One program. errors: wrong words of each group of recordings. alone: seconds of each round one by one; together:
    four at once, () = not measured."""

    errors: Sequence[int]
    alone: Sequence[float]
    together: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Sound:
    """words: of each group of recordings, by its name. seconds: of sound one by one, and of what is sent four at
    once."""

    words: dict[str, int]
    seconds: float
    together: float


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


def table(own: Listener, other: Listener, third: Listener, said: Sound, lost: Interval) -> str:
    """Markdown. other: whom the bars speak of. lost: KL of the served weights from their floats, nats."""
    rows = list[tuple[Sequence[str], bool]]()
    for group, (name, words) in enumerate(said.words.items()):
        shares = [100 * each.errors[group] / words for each in (own, other, third)]
        points = shares[0] - shares[1]
        errors = (f"wrong words of {name}, %", *(f"{share:.2f}" for share in shares), f"{points:+.2f} points")
        rows.append(((*errors, f"<= {WORST_POINTS}"), points <= WORST_POINTS))
    alone = median(a / b for a, b in zip(own.alone, other.alone, strict=True))
    together = median(b / a for a, b in zip(own.together, other.together, strict=True))
    speeds = [f"{median(listener.alone) / said.seconds:.4f}" for listener in (own, other, third)]
    rows.append((("seconds for one of sound", *speeds, f"{alone:.2f}", f"<= {SLOWEST}"), alone <= SLOWEST))
    speeds = [f"{said.together / median(listener.together):.1f}" for listener in (own, other)]
    at_once = ("4 at once, seconds of sound in one", *speeds, "", f"{together:.2f}", f">= {LEAST_TOGETHER}")
    rows.append((at_once, together >= LEAST_TOGETHER))
    loss = f"{lost.value:.4f} ({lost.low:.4f} to {lost.high:.4f})"
    rows.append((("KL from float32, nats (95 %)", loss, "", "", "", ""), True))
    head = "| | hexserve | faster-whisper | whisper.cpp | ratio | bar | |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} | {'' if holds else MISSED} |\n" for row, holds in rows)
