"""What a run says: word errors, how fast, and whether the bars hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

from engine.compile.check.parity import Interval

MISSED = "missed"  # a bar
WORST_POINTS, SLOWEST, LEAST_TOGETHER = 0.5, 1.0, 1.5


@dataclass(frozen=True, slots=True)
class Listener:
    """One program. errors: wrong words of each folder. alone: seconds of each round one by one; together: four at
    once. What is missing was not measured."""

    errors: Mapping[str, int]
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sound:
    """words: of each folder of recordings, by its name. seconds: of sound one by one, and of what is sent four at
    once."""

    words: Mapping[str, int]
    seconds: float
    together: float


def wrong_words(said: str, written: str, language: str = "en") -> tuple[int, int]:
    """Words that are replaced, missing or too many, and how many were said; as Whisper's own normalisers spell them,
    outside English without accents, which some texts lack."""
    kind, option = (EnglishTextNormalizer, {}) if language == "en" else (BasicTextNormalizer, True)
    normal = kind(option)
    wanted, found = normal(said).split(), normal(written).split()
    row = list(range(len(found) + 1))
    for number, word in enumerate(wanted, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(found, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1], len(wanted)


def table(own: Listener, other: Listener, third: Listener, said: Sound, lost: Mapping[str, Interval]) -> str:
    """Markdown. other: whom the bars speak of. lost: KL of bundles from their floats, nats."""
    rows = list[tuple[Sequence[str], bool]]()
    for name, words in said.words.items():
        shares = [100 * each.errors[name] / words for each in (own, other, third) if name in each.errors]
        points = shares[0] - shares[1]
        cells = [*(f"{share:.2f}" for share in shares), ""][:3]
        errors = (f"wrong words of {name}, %", *cells, f"{points:+.2f} points")
        rows.append(((*errors, f"<= {WORST_POINTS}"), points <= WORST_POINTS))
    alone = median(a / b for a, b in zip(own.alone, other.alone, strict=True))
    together = median(b / a for a, b in zip(own.together, other.together, strict=True))
    speeds = [f"{median(listener.alone) / said.seconds:.4f}" for listener in (own, other, third)]
    rows.append((("seconds for one of sound", *speeds, f"{alone:.2f}", f"<= {SLOWEST}"), alone <= SLOWEST))
    speeds = [f"{said.together / median(listener.together):.1f}" for listener in (own, other)]
    at_once = ("4 at once, seconds of sound in one", *speeds, "", f"{together:.2f}", f">= {LEAST_TOGETHER}")
    rows.append((at_once, together >= LEAST_TOGETHER))
    for name, found in lost.items():
        loss = f"{found.value:.5f} ({found.low:.5f} to {found.high:.5f})"
        rows.append(((f"KL of {name} from float32, nats (95 %)", loss, "", "", "", ""), True))
    head = "| | hexserve | faster-whisper | whisper.cpp | ratio | bar | |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} | {'' if holds else MISSED} |\n" for row, holds in rows)
