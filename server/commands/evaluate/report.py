"""The figures as one table, as JSON and as a drawing."""

from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine.evaluation.models import EvaluatedModel
from engine.evaluation.statistics import BLOCK_TOKENS, LEVEL, RESAMPLES, Interval, Quality
from server.commands.evaluate.drawing import Point, error_drawing

ALONE = ("perplexity",)
COMPARED = ("perplexity", "perplexity\nloss %", "top-1 %", "KL mean", "KL p99")


@dataclass(frozen=True, slots=True)
class EvaluatedRow:
    """One model of the table. form: how its weights are stored. size: bytes on disk."""

    name: str
    form: str
    device: str
    size: int
    quality: Quality

    @classmethod
    def of(cls, model: EvaluatedModel, quality: Quality) -> "EvaluatedRow":
        """A model with its figures."""
        return cls(model.name, model.form, model.device, model.size, quality)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that is reported. reference: None = the models were compared with nothing."""

    text: str
    windows: int
    context: int
    stride: int
    seed: int
    reference: EvaluatedRow | None
    models: list[EvaluatedRow]


def print_evaluation(console: Console, found: Evaluation) -> None:
    """One row for each model, the reference last, and what the figures are of."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("bundle", "weights\nruns on"):
        table.add_column(title, overflow="fold", min_width=8)
    for title in ("size MB", *(COMPARED if found.reference else ALONE)):
        table.add_column(title, justify="right", overflow="fold")
    for row in [*found.models, *([found.reference] if found.reference else [])]:
        table.add_row(
            Path(row.name).name or row.name, f"{row.form}\n{row.device}", f"{row.size / 1e6:.1f}", *_cells(row.quality)
        )
    console.print(table, markup=False, highlight=False)
    tokens = found.models[0].quality.tokens
    sentence = (
        f"{tokens} tokens predicted, in {found.windows} windows of up to {found.context}, {found.stride} apart, of "
        f"{found.text}. Below each figure: its {LEVEL:.0%} confidence interval."
    )
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)


def _cells(quality: Quality) -> list[str]:
    fixed, small = (".2f", ".2f"), (".3g", ".2g")
    columns = (
        (quality.perplexity, 1.0, *fixed),
        (quality.perplexity_loss, 100.0, *fixed),
        (quality.top1, 100.0, *fixed),
        (quality.kl, 1.0, *small),
        (quality.kl_p99, 1.0, *small),
    )
    return [_cell(figure, factor, form, bounds) for figure, factor, form, bounds in columns if figure is not None]


def _cell(figure: Interval, factor: float, form: str, bounds: str) -> str:
    return f"{figure.value * factor:{form}}\n{figure.low * factor:{bounds}}..{figure.high * factor:{bounds}}"


def write_json(file: Path, found: Evaluation) -> None:
    """Every figure. OSError."""
    intervals = {"level": LEVEL, "resamples": RESAMPLES, "block_tokens": BLOCK_TOKENS}
    content = msgspec.json.encode({**asdict(found), "intervals": intervals})
    file.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def write_svg(file: Path, found: Evaluation) -> None:
    """KL against size, or perplexity where there is no reference. OSError."""
    title = "Mean KL from the float model" if found.reference else "Perplexity"
    points = [
        Point(f"{Path(row.name).name} ({row.form})", row.size, row.quality.kl or row.quality.perplexity)
        for row in found.models
    ]
    file.write_text(error_drawing(title, points), encoding="utf-8")
