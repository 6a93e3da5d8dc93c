"""The figures as one table, as JSON and as a drawing."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from engine.compile.bootstrap import BLOCK_TOKENS, LEVEL, RESAMPLES, Interval
from engine.evaluation.models import EvaluatedModel
from engine.evaluation.statistics import Quality
from server.commands.evaluate.drawing import Point, error_drawing
from server.commands.evaluate.lm_eval import TaskFigures, TaskMetric
from server.commands.evaluate.speed import ANSWER_TOKENS, ROUNDS, Rate, ServedSpeed

ALONE = ("perplexity",)
COMPARED = ("perplexity", "perplexity\nloss %", "top-1 %", "KL mean", "KL p99")
TIMED = ("decode\ntokens/s", "prompt\ntokens/s")
NOTHING = "-"


@dataclass(slots=True)
class EvaluatedRow:
    """One model of the table. form: how its weights are stored. size: bytes on disk. None, {}: not measured."""

    name: str
    form: str
    size: int
    device: str = ""
    quality: Quality | None = None
    speed: ServedSpeed | None = None
    tasks: dict[str, TaskFigures] = field(default_factory=dict)

    @classmethod
    def of(cls, model: EvaluatedModel, quality: Quality) -> "EvaluatedRow":
        """A model with its figures."""
        return cls(model.name, model.form, model.size, model.device, quality)


@dataclass(frozen=True, slots=True)
class TextSetting:
    """Which text was predicted, and how it was cut."""

    text: str
    windows: int
    context: int
    stride: int
    seed: int


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that is reported. setting: None = no text. reference: None = the models were compared with nothing."""

    setting: TextSetting | None
    reference: EvaluatedRow | None
    models: list[EvaluatedRow]


def print_evaluation(console: Console, found: Evaluation) -> None:
    """One row for each model, the reference last, and what the figures are of."""
    rows = [*found.models, *([found.reference] if found.reference else [])]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for title in ("bundle", "weights\nruns on"):
        table.add_column(title, overflow="fold", min_width=8)
    predicted = () if found.setting is None else COMPARED if found.reference else ALONE
    timed = TIMED if any(row.speed for row in rows) else ()
    tasks = list(dict.fromkeys((name, each.headline) for row in rows for name, each in row.tasks.items()))
    for title in ("size MB", *predicted, *timed, *(f"{name}\n{metric}" for name, metric in tasks)):
        table.add_column(title, justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            Path(row.name).name or row.name,
            f"{row.form}\n{row.device}",
            f"{row.size / 1e6:.1f}",
            *_filled(_quality_cells(row.quality), len(predicted)),
            *_filled(_speed_cells(row.speed), len(timed)),
            *(_task_cell(row.tasks.get(name), metric) for name, metric in tasks),
        )
    console.print(table, markup=False, highlight=False)
    console.print(" ".join(_captions(found)), markup=False, highlight=False, soft_wrap=True)


def write_json(file: Path, found: Evaluation) -> None:
    """Every figure. OSError."""
    intervals = {"level": LEVEL, "resamples": RESAMPLES, "block_tokens": BLOCK_TOKENS}
    setting: dict[str, Any] = asdict(found.setting) if found.setting else {}
    rows = {"reference": found.reference and asdict(found.reference), "models": [asdict(row) for row in found.models]}
    content = msgspec.json.encode({**setting, **rows, "intervals": intervals})
    file.write_bytes(msgspec.json.format(content, indent=1) + b"\n")


def write_svg(file: Path, found: Evaluation) -> None:
    """KL against size and speed, or perplexity where there is no reference. OSError."""
    title = "Mean KL from the float model" if found.reference else "Perplexity"
    points = [
        Point(
            f"{Path(row.name).name} ({row.form})",
            row.size,
            row.quality.kl or row.quality.perplexity,
            row.speed.decode.value if row.speed else None,
        )
        for row in found.models
        if row.quality is not None
    ]
    file.write_text(error_drawing(title, points), encoding="utf-8")


def _captions(found: Evaluation) -> list[str]:
    said, quality = [], found.models[0].quality
    if found.setting is not None and quality is not None:
        said.append(
            f"{quality.tokens} tokens predicted, in {found.setting.windows} windows of up to {found.setting.context}, "
            f"{found.setting.stride} apart, of {found.setting.text}. Below each figure: its {LEVEL:.0%} confidence "
            "interval."
        )
    speed = found.models[0].speed
    if speed is not None:
        said.append(
            f"Speed: served on this machine, one client, {speed.prompt_tokens} tokens of prompt and {ANSWER_TOKENS} of "
            f"answer; the median of {ROUNDS} rounds in turns, below it the slowest and the fastest."
        )
    if any(row.tasks for row in found.models):
        said.append(f"Tasks: by lm-eval, below each figure its {LEVEL:.0%} interval from lm-eval's standard error.")
    return said


def _filled(cells: Sequence[str], count: int) -> list[str]:
    return [*cells, *[NOTHING] * (count - len(cells))]


def _quality_cells(quality: Quality | None) -> list[str]:
    if quality is None:
        return []
    fixed, small = (".2f", ".2f"), (".3g", ".2g")
    columns = (
        (quality.perplexity, 1.0, *fixed),
        (quality.perplexity_loss, 100.0, *fixed),
        (quality.top1, 100.0, *fixed),
        (quality.kl, 1.0, *small),
        (quality.kl_p99, 1.0, *small),
    )
    return [_cell(figure, factor, form, bounds) for figure, factor, form, bounds in columns if figure is not None]


def _cell(figure: Interval | Rate, factor: float, form: str, bounds: str) -> str:
    return f"{figure.value * factor:{form}}\n{figure.low * factor:{bounds}}..{figure.high * factor:{bounds}}"


def _speed_cells(speed: ServedSpeed | None) -> list[str]:
    return [] if speed is None else [_cell(rate, 1.0, ".4g", ".4g") for rate in (speed.decode, speed.prompt)]


def _task_cell(task: TaskFigures | None, metric: str) -> str:
    figure: TaskMetric | None = task.metrics.get(metric) if task else None
    if figure is None:
        return NOTHING
    bounds = figure.bounds
    return f"{figure.value:.4g}\n" + (f"{bounds[0]:.3g}..{bounds[1]:.3g}" if bounds else "")
