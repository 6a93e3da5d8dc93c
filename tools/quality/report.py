"""What was measured of quantised checkpoints, against the bars, as Markdown. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.compile.check.parity import Interval
from tools.peers.report import PeerRatio

FAST = "fast"
EMULATED = "-emulator"  # the end of a form's name
KL_BAR, DISAGREEMENT_BAR = 0.25, 0.5
# Of published models: the KL of w8a16 in nats, and the shares of Q4_0's and Q4_K_M's.
EIGHT_BITS = "w8a16"
EIGHT_BITS_BAR, Q4_0_BAR, Q4_K_M_BAR = 0.01, 0.35, 1.0


@dataclass(frozen=True, slots=True)
class QualityRow:
    """One quantised checkpoint.

    form: storage and block. way: `--quality`, or the name of other software. bits: stored for a weight of the linear
    layers and the head, scales included. seconds: that it took to make. loss: of perplexity, 1 = twice as high.
    """

    checkpoint: str
    form: str
    way: str
    bits: float
    seconds: float
    tokens: int
    kl: Interval
    top1: Interval
    loss: Interval

    @classmethod
    def of(cls, place: tuple[str, str, str], bits: float, seconds: float, written: dict[str, Any]) -> "QualityRow":
        """From a model's figures in what `hexserve eval --json` wrote. place: checkpoint, form, way."""
        kl, top1, loss = (Interval(**written[key]) for key in ("kl", "top1", "perplexity_loss"))
        return cls(*place, bits, seconds, written["tokens"], kl, top1, loss)


def bars(rows: Sequence[QualityRow], published: frozenset[str]) -> list[PeerRatio]:
    """Every bar that the rows have figures for. published: models that are held against llama.cpp's files.

    The emulator's rows have none: they are of fewer tokens than what they would be held against.
    """
    by_place = {(row.checkpoint, row.form, row.way): row for row in rows}
    chosen = [row for row in rows if row.way in ("good", "best") and not row.form.endswith(EMULATED)]
    bars_of = {True: _bars_of_published, False: _bars_of_demo}
    return [bar for row in chosen for bar in bars_of[row.checkpoint in published](row, by_place)]


Rows = Mapping[tuple[str, str, str], QualityRow]


def _bars_of_published(row: QualityRow, rows: Rows) -> Iterator[PeerRatio]:
    if row.form == EIGHT_BITS:
        yield _bar(row, "KL, in nats", row.kl.value, 1.0, EIGHT_BITS_BAR)
        return
    baseline, most = ("Q4_0", Q4_0_BAR) if row.way == "good" else ("Q4_K_M", Q4_K_M_BAR)
    if theirs := rows.get((row.checkpoint, baseline, "llama.cpp")):
        yield _bar(row, f"KL / {baseline}'s", row.kl.value, theirs.kl.value, most)


def _bars_of_demo(row: QualityRow, rows: Rows) -> Iterator[PeerRatio]:
    nearest = rows.get((row.checkpoint, row.form, FAST))
    if nearest and row.form != EIGHT_BITS:  # which has no codes to choose
        yield _bar(row, "KL / nearest's", row.kl.value, nearest.kl.value, KL_BAR)
        yield _bar(row, "disagreements / nearest's", 1 - row.top1.value, 1 - nearest.top1.value, DISAGREEMENT_BAR)


def _bar(row: QualityRow, name: str, part: float, whole: float, most: float) -> PeerRatio:
    return PeerRatio(f"{row.checkpoint} {row.form} {row.way}", name, part / whole if whole > 0 else None, most)


def table(rows: Sequence[QualityRow]) -> str:
    """Markdown, one line for each row."""
    head = "| checkpoint | form | way | bits a weight | KL mean | top-1 % | perplexity loss % | made in s |"
    lines = [head, "|---" * 8 + "|"]
    for row in rows:
        lines.append(
            f"| {row.checkpoint} | {row.form} | {row.way} | {row.bits:.2f} | {row.kl.value:.3g} "
            f"({row.kl.low:.2g}..{row.kl.high:.2g}) | {100 * row.top1.value:.1f} "
            f"({100 * row.top1.low:.1f}..{100 * row.top1.high:.1f}) | {100 * row.loss.value:.2f} "
            f"({100 * row.loss.low:.2f}..{100 * row.loss.high:.2f}) | {row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"
