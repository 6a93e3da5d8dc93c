"""The figures as one table and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from engine.compile.calibration.statistics import BLOCK_TOKENS, LEVEL, RESAMPLES, Interval
from engine.evaluation.evaluate import Quality
from engine.evaluation.models import EvaluatedModel
from server.commands.tables import table

# Field of Quality, heading, factor, form of the value and of its bounds; those that compare stand behind the first.
COLUMNS = (
    ("perplexity", "perplexity", 1.0, ".2f", ".2f"),
    ("perplexity_loss", "perplexity\nloss %", 100.0, ".2f", ".2f"),
    ("top1", "top-1 %", 100.0, ".2f", ".2f"),
    ("kl", "KL mean", 1.0, ".3g", ".2g"),
    ("kl_p99", "KL p99", 1.0, ".3g", ".2g"),
)


@dataclass(frozen=True, slots=True)
class EvaluatedRow:
    """One model of the table. form: how its weights are stored. size: bytes on disk."""

    name: str
    form: str
    size: int
    device: str
    quality: Quality

    @classmethod
    def of(cls, model: EvaluatedModel, quality: Quality) -> "EvaluatedRow":
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
    """Everything that is reported. reference: None = the models were compared with nothing."""

    setting: TextSetting
    reference: EvaluatedRow | None
    models: Sequence[EvaluatedRow]

    def document(self) -> dict[str, Any]:
        rows = {"reference": self.reference and asdict(self.reference), "models": [asdict(row) for row in self.models]}
        intervals = {"level": LEVEL, "resamples": RESAMPLES, "block_tokens": BLOCK_TOKENS}
        return {**asdict(self.setting), **rows, "intervals": intervals}


def print_evaluation(console: Console, found: Evaluation) -> None:
    """One row for each model, the reference last, and what the figures are of."""
    columns = COLUMNS if found.reference else COLUMNS[:1]
    rows = []
    for row in (*found.models, *([found.reference] if found.reference else [])):
        figures = (_cell(getattr(row.quality, name), factor, form, bounds) for name, _, factor, form, bounds in columns)
        rows.append([Path(row.name).name or row.name, f"{row.form}\n{row.device}", f"{row.size / 1e6:.1f}", *figures])
    headings = ("bundle", "weights\nruns on", "size MB", *(heading for _, heading, *_ in columns))
    console.print(table(headings, rows, words=2))
    setting = found.setting
    console.print(
        f"{found.models[0].quality.tokens} tokens predicted, in {setting.windows} windows of up to {setting.context}, "
        f"{setting.stride} apart, of {setting.text}. Below each figure: its {LEVEL:.0%} confidence interval.",
        soft_wrap=True,
    )


def _cell(figure: Interval | None, factor: float, form: str, bounds: str) -> str:
    """A figure and below it where it lies; the reference is compared with nothing."""
    if figure is None:
        return "-"
    return f"{figure.value * factor:{form}}\n{figure.low * factor:{bounds}}..{figure.high * factor:{bounds}}"


def write_json(file: Path, document: dict[str, Any]) -> None:
    """OSError."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")
