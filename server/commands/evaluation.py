"""One run of `hexserve eval`: models read a text, with progress; then all is reported as a table and as JSON."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from engine.compile.check.parity import BLOCK_TOKENS, LEVEL, RESAMPLES, Interval
from engine.compile.progress import RichProgress
from engine.errors import BundleError
from engine.evaluation.evaluate import Quality, context_of, evaluate, quality, windows_of
from engine.evaluation.models import EvaluatedModel, evaluated_text, open_bundle, open_reference, open_served
from engine.sources.resolve import COSTS_FOLDER, named_source, resolve_bundle
from server.commands.exit_codes import INTERRUPTED, write_file
from server.commands.own_server import settings_cache
from server.commands.tables import table, wide_console

# Field of Quality, heading, factor, form of the value and of its bounds; those that compare stand behind the first.
COLUMNS = (
    ("perplexity", "perplexity", 1.0, ".2f", ".2f"),
    ("perplexity_loss", "perplexity\nloss %", 100.0, ".2f", ".2f"),
    ("top1", "top-1 %", 100.0, ".2f", ".2f"),
    ("kl", "KL mean", 1.0, ".3g", ".2g"),
    ("kl_p99", "KL p99", 1.0, ".3g", ".2g"),
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is reported. setting: which text was predicted, and how it was cut. reference: None = nothing was."""

    setting: dict[str, Any]
    reference: tuple[EvaluatedModel, Quality] | None
    models: Sequence[tuple[EvaluatedModel, Quality]]

    def document(self) -> dict[str, Any]:
        reference, models = self.reference and _row(*self.reference), [_row(*each) for each in self.models]
        intervals = {"level": LEVEL, "resamples": RESAMPLES, "block_tokens": BLOCK_TOKENS}
        return self.setting | {"reference": reference, "models": models, "intervals": intervals}


def _row(model: EvaluatedModel, figures: Quality) -> dict[str, Any]:
    """form: how its weights are stored. size: bytes on disk."""
    facts = {"name": model.name, "form": model.form, "size": model.size, "device": model.device}
    return {**facts, "quality": asdict(figures)}


def run_evaluation(evaluate_models: Callable[[], Evaluation], json_file: Path | None) -> int:
    """Evaluate, print and write; the exit code."""
    try:
        found = evaluate_models()
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    console = wide_console()
    _print(console, found)
    if json_file is not None:
        write_file(json_file, msgspec.json.format(msgspec.json.encode(found.document()), indent=1) + b"\n")
        console.print(f"Written to {json_file}")
    return 0


def evaluated(
    bundles: Sequence[str], file: Path, against: str, tokens: int, context: int, stride: int, seed: int, served: bool
) -> Evaluation:
    """What the models make of the text. SettingsError, BundleError, CompileError, EngineFailure."""
    text = evaluated_text(file)  # the quickest of all that may be wrong
    cache = settings_cache()
    named = [(bundle, resolve_bundle(bundle, cache)) for bundle in bundles]
    memory = cache / COSTS_FOLDER
    with RichProgress(Console(stderr=True)) as progress, ExitStack() as stack:
        models = [open_bundle(name, folder, memory, stack) for name, folder in named]
        if served:
            models += [open_served(name, folder, str(memory), stack) for name, folder in named]
        reference = _reference(against, models[0].made_for, cache, stack)
        everyone = [*models, *([reference] if reference else [])]
        context = context_of(everyone, context)
        windows = windows_of(everyone, text, tokens, context, stride)
        progress.stage("evaluate", len(everyone) * sum(len(window.inputs) for window in windows), "tokens")
        scores, of_reference = evaluate(models, reference, windows, progress.advance)
        setting = {"text": str(file), "windows": len(windows), "context": context, "stride": stride or context}
        last = (reference, quality(of_reference, seed)) if reference else None
        rows = [(model, quality(each, seed)) for model, each in zip(models, scores, strict=True)]
        return Evaluation(setting | {"seed": seed}, last, rows)


def _reference(against: str, context: int, cache: Path, stack: ExitStack) -> EvaluatedModel | None:
    if not against:
        return None
    try:
        source = named_source(against, cache).folder
    except BundleError as error:
        raise BundleError(f"--against {error}") from error
    except OSError as error:
        raise BundleError(f"--against {against} cannot be read: {error.strerror or error}") from error
    return open_reference(against, source, context, cache / COSTS_FOLDER, stack)


def _print(console: Console, found: Evaluation) -> None:
    columns = COLUMNS if found.reference else COLUMNS[:1]
    rows = []
    for model, figures_of in (*found.models, *([found.reference] if found.reference else [])):
        figures = (_cell(getattr(figures_of, name), factor, form, bounds) for name, _, factor, form, bounds in columns)
        about = [Path(model.name).name or model.name, f"{model.form}\n{model.device}", f"{model.size / 1e6:.1f}"]
        rows.append([*about, *figures])
    headings = ("bundle", "weights\nruns on", "size MB", *(heading for _, heading, *_ in columns))
    console.print(table(headings, rows, words=2))
    setting = found.setting
    console.print(
        f"{found.models[0][1].tokens} tokens predicted, in {setting['windows']} windows of up to {setting['context']}, "
        f"{setting['stride']} apart, of {setting['text']}. Below each figure: its {LEVEL:.0%} confidence interval.",
        soft_wrap=True,
    )


def _cell(figure: Interval | None, factor: float, form: str, bounds: str) -> str:
    """A figure and below it where it lies; the reference is compared with nothing."""
    if figure is None:
        return "-"
    return f"{figure.value * factor:{form}}\n{figure.low * factor:{bounds}}..{figure.high * factor:{bounds}}"
