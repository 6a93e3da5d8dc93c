"""What was measured of quantised checkpoints, against the bars, as Markdown and a drawing. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from engine.compile.calibration.statistics import Interval
from tools.drawing import add_text, document, headed
from tools.peers.report import PeerRatio

FAST = "fast"
EMULATED = "-emulator"  # the end of a form's name
KL_BAR, DISAGREEMENT_BAR = 0.25, 0.5
# Of published models: the KL of w8a16 in nats, and the shares of Q4_0's and Q4_K_M's.
EIGHT_BITS = "w8a16"
EIGHT_BITS_BAR, Q4_0_BAR, Q4_K_M_BAR = 0.01, 0.35, 1.0
PLOT, LEFT, ROW = 320, 330, 18
COLOURS = {"fast": "#9aa5b1", "good": "#2f6fde", "best": "#1b7f4d"}
RIVAL = "#d9a441"


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
    rival, most = ("Q4_0", Q4_0_BAR) if row.way == "good" else ("Q4_K_M", Q4_K_M_BAR)
    if theirs := rows.get((row.checkpoint, rival, "llama.cpp")):
        yield _bar(row, f"KL / {rival}'s", row.kl.value, theirs.kl.value, most)


def _bars_of_demo(row: QualityRow, rows: Rows) -> Iterator[PeerRatio]:
    nearest = rows.get((row.checkpoint, row.form, FAST))
    if nearest and row.form != EIGHT_BITS:  # which has no codes to choose
        yield _bar(row, "KL / nearest's", row.kl.value, nearest.kl.value, KL_BAR)
        yield _bar(row, "disagreements / nearest's", 1 - row.top1.value, 1 - nearest.top1.value, DISAGREEMENT_BAR)


def _bar(row: QualityRow, name: str, part: float, whole: float, most: float) -> PeerRatio:
    return PeerRatio(f"{row.checkpoint} {row.form} {row.way}", name, part / whole if whole > 0 else None, most)


def table(rows: Sequence[QualityRow]) -> str:
    """Markdown, one line for each row."""
    lines = [
        "| checkpoint | form | way | bits a weight | KL mean | top-1 % | perplexity loss % | made in s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row.checkpoint} | {row.form} | {row.way} | {row.bits:.2f} | {row.kl.value:.3g} "
            f"({row.kl.low:.2g}..{row.kl.high:.2g}) | {100 * row.top1.value:.1f} "
            f"({100 * row.top1.low:.1f}..{100 * row.top1.high:.1f}) | {100 * row.loss.value:.2f} "
            f"({100 * row.loss.low:.2f}..{100 * row.loss.high:.2f}) | {row.seconds:.0f} |"
        )
    return "\n".join(lines) + "\n"


def drawing(rows: Sequence[QualityRow], caption: str) -> str:
    """An SVG document: the mean KL of each row on a logarithmic axis, with its interval."""
    note = "Logarithmic; shorter is better. The line is the 95 % interval."
    root, head = headed("Mean KL from the float model", caption, note, ROW * len(rows))
    scale = _Scale.of(rows)
    for index, row in enumerate(rows):
        first = index == 0 or rows[index - 1].checkpoint != row.checkpoint
        _draw_row(root, head + ROW * index, row, scale, first)
    return document(root)


@dataclass(frozen=True, slots=True)
class _Scale:
    low: float
    high: float

    @classmethod
    def of(cls, rows: Sequence[QualityRow]) -> "_Scale":
        values = [math.log10(max(row.kl.value, 1e-9)) for row in rows] or [0.0]
        low = math.ceil(min(values)) - 1  # the shortest bar is seen too
        return cls(low, max(math.ceil(max(values)), low + 1))

    def x(self, value: float) -> float:
        """Where a value stands, within the plot."""
        part = (math.log10(max(value, 1e-9)) - self.low) / (self.high - self.low)
        return LEFT + PLOT * min(max(part, 0.0), 1.0)


def _draw_row(root: Element, top: int, row: QualityRow, scale: _Scale, is_first: bool) -> None:
    if is_first:
        add_text(root, 20, top + 12, row.checkpoint, size=11)
    add_text(root, LEFT - 8, top + 12, f"{row.form}, {row.way}", size=11, anchor="end")
    place = {"x": str(LEFT), "y": str(top + 3), "height": str(ROW - 7), "fill": COLOURS.get(row.way, RIVAL)}
    SubElement(root, "rect", {**place, "width": f"{scale.x(row.kl.value) - LEFT:.1f}"})
    y = f"{top + ROW / 2:.1f}"
    ends = {"x1": f"{scale.x(row.kl.low):.1f}", "x2": f"{scale.x(row.kl.high):.1f}", "y1": y, "y2": y}
    SubElement(root, "line", {**ends, "stroke": "#1f2933"})
    add_text(root, LEFT + PLOT + 12, top + 12, f"{row.kl.value:.2e}", size=11)
