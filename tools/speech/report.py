"""What a run says: word errors, how fast, and whether the bars hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

import numpy as np
from transformers.models.whisper.english_normalizer import BasicTextNormalizer, EnglishTextNormalizer

from engine.compile.check.parity import Interval, draw, interval

MISSED = "missed"  # a bar
WORST_POINTS, SLOWEST, LEAST_TOGETHER = 0.5, 1.0, 1.5
ALL, SEED = "all", 7
Row = tuple[Sequence[str], bool]  # cells, and whether its bar holds


@dataclass(frozen=True, slots=True)
class Listener:
    """errors: wrong words of each recording of a folder. alone, together: seconds of each round, one by one or four."""

    errors: Mapping[str, Sequence[int]]
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Sound:
    """words: of each recording of a folder. seconds: of sound one by one, together: of what is sent four at once."""

    words: Mapping[str, Sequence[int]]
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
    told, joined = (own.errors, other.errors, third.errors), chain.from_iterable
    rows = [_wrong(name, words, [each[name] for each in told if name in each]) for name, words in said.words.items()]
    together = [[*joined(each[name] for name in said.words)] for each in told[:2]]
    rows.append(_wrong(ALL, [*joined(said.words.values())], together))
    alone = median(a / b for a, b in zip(own.alone, other.alone, strict=True))
    faster = median(b / a for a, b in zip(own.together, other.together, strict=True))
    speeds = [f"{median(listener.alone) / said.seconds:.4f}" for listener in (own, other, third)]
    rows.append((("seconds for one of sound", *speeds, f"{alone:.2f}", f"<= {SLOWEST}"), alone <= SLOWEST))
    speeds = [f"{said.together / median(listener.together):.1f}" for listener in (own, other)]
    at_once = ("4 at once, seconds of sound in one", *speeds, "", f"{faster:.2f}", f">= {LEAST_TOGETHER}")
    rows.append((at_once, faster >= LEAST_TOGETHER))
    for name, found in lost.items():
        loss = f"{found.value:.5f} ({found.low:.5f} to {found.high:.5f})"
        rows.append(((f"KL of {name} from float32, nats (95 %)", loss, "", "", "", ""), True))
    head = "| | hexserve | faster-whisper | whisper.cpp | ratio | bar | |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(f"| {' | '.join(row)} | {'' if holds else MISSED} |\n" for row, holds in rows)


def _wrong(name: str, words: Sequence[int], counts: Sequence[Sequence[int]]) -> Row:
    """words: of each recording. counts: wrong ones, of each program. One folder misses the bar if its interval does."""
    more, each = np.subtract(counts[0], counts[1]), np.array(words)
    draws = draw([1] * len(words), SEED)
    points = interval(lambda at: float(100 * more[at].sum() / each[at].sum()), len(words), draws)
    shares = [*(f"{100 * sum(count) / sum(words):.2f}" for count in counts), ""][:3]
    told = f"{points.value:+.2f} ({points.low:+.2f} to {points.high:+.2f}) points"
    holds = (points.value if name == ALL else points.low) <= WORST_POINTS
    return (f"wrong words of {name}, %", *shares, told, f"<= {WORST_POINTS}"), holds
