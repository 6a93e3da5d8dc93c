"""One run of `hexserve eval`: models opened, read with progress, reported."""

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from engine.compile.progress import RichProgress
from engine.demo.location import SHIPPED
from engine.errors import BundleError, CompileError, EngineFailure
from engine.evaluation.evaluate import context_of, evaluate, windows_of
from engine.evaluation.models import EvaluatedModel, open_bundle, open_reference
from engine.evaluation.statistics import quality
from engine.evaluation.vocabulary import evaluated_text
from engine.sources.resolve import COSTS_FOLDER, cache_folder, resolve_bundle
from server.commands.evaluate.report import EvaluatedRow, Evaluation, print_evaluation, write_json, write_svg
from server.commands.exit_codes import FAILED, refuse
from server.settings import SettingsError, load_settings

FILE_WIDTH = 120


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What the command line asks for; against: '' = nothing, tokens, context and stride as its help says."""

    bundles: tuple[str, ...]
    against: str
    text: Path
    tokens: int
    context: int
    stride: int
    seed: int


def run_evaluation(wanted: EvaluationRequest, json_file: Path | None, svg_file: Path | None) -> int:
    """Evaluate, print and write; the exit code."""
    try:
        found = _evaluated(wanted)
    except (SettingsError, BundleError, CompileError) as error:
        refuse(error)
    except EngineFailure as error:
        refuse(error, FAILED)
    console = Console()
    if not console.is_terminal:  # nothing wraps a file's lines again
        console = Console(width=FILE_WIDTH)
    print_evaluation(console, found)
    for written, file, write in (("Written to", json_file, write_json), ("Drawn in", svg_file, write_svg)):
        if file is None:
            continue
        try:
            write(file, found)
        except OSError as error:
            refuse(f"{file} cannot be written: {error.strerror or error}")
        console.print(f"{written} {file}", markup=False, highlight=False)
    return 0


def _evaluated(wanted: EvaluationRequest) -> Evaluation:
    text = evaluated_text(wanted.text)  # the quickest of all that may be wrong
    cache = cache_folder(load_settings({}, os.environ, None).cache_dir)
    with ExitStack() as stack:
        models = [
            open_bundle(bundle, resolve_bundle(bundle, cache), cache / COSTS_FOLDER, stack) for bundle in wanted.bundles
        ]
        reference = _reference(wanted.against, models[0].made_for, cache / COSTS_FOLDER, stack)
        everyone = [*models, *([reference] if reference else [])]
        context = context_of(everyone, wanted.context)
        windows = windows_of(everyone, text, wanted.tokens, context, wanted.stride)
        with RichProgress(Console(stderr=True)) as progress:
            progress.stage("evaluate", len(everyone) * sum(len(window.inputs) for window in windows), "tokens")
            scores, of_reference = evaluate(models, reference, windows, progress.advance)
        rows = [EvaluatedRow.of(model, quality(each, wanted.seed)) for model, each in zip(models, scores, strict=True)]
        return Evaluation(
            text=str(wanted.text),
            windows=len(windows),
            context=context,
            stride=wanted.stride or context,
            seed=wanted.seed,
            reference=EvaluatedRow.of(reference, quality(of_reference, wanted.seed)) if reference else None,
            models=rows,
        )


def _reference(against: str, context: int, memory: Path, stack: ExitStack) -> EvaluatedModel | None:
    if not against:
        return None
    try:
        source = SHIPPED[against]() if against in SHIPPED else Path(against).expanduser()
    except RuntimeError:
        raise BundleError(f"--against {against} names a home folder that does not exist") from None
    return open_reference(against, source, context, memory, stack)
