"""One run of `hexserve eval`: models read a text, with progress; then all is reported."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from engine.compile.progress import RichProgress
from engine.compile.sources.named import named_source
from engine.errors import BundleError, CompileError, EngineFailure
from engine.evaluation.evaluate import context_of, evaluate, quality, windows_of
from engine.evaluation.models import EvaluatedModel, evaluated_text, open_bundle, open_reference
from engine.evaluation.served import open_served
from engine.sources.resolve import COSTS_FOLDER, resolve_bundle
from server.commands.evaluate.report import EvaluatedRow, Evaluation, TextSetting, print_evaluation, write_json
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.commands.own_server import settings_cache
from server.commands.tables import wide_console
from server.settings import SettingsError


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Bundles, and the text to predict. against: '' = nothing. The rest is as the command's help says."""

    bundles: tuple[str, ...]
    file: Path
    against: str
    tokens: int
    context: int
    stride: int
    seed: int
    served: bool


def run_evaluation(wanted: EvaluationRequest, json_file: Path | None) -> int:
    """Evaluate, print and write; the exit code."""
    try:
        found = evaluated(wanted)
    except (SettingsError, BundleError, CompileError) as error:
        refuse(error)
    except EngineFailure as error:
        refuse(error, FAILED)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    console = wide_console()
    print_evaluation(console, found)
    if json_file is not None:
        try:
            write_json(json_file, found.document())
        except OSError as error:
            refuse(f"{json_file} cannot be written: {error.strerror or error}")
        console.print(f"Written to {json_file}")
    return 0


def evaluated(wanted: EvaluationRequest) -> Evaluation:
    """What the models make of the text. SettingsError, BundleError, CompileError, EngineFailure."""
    text = evaluated_text(wanted.file)  # the quickest of all that may be wrong
    cache = settings_cache()
    folders = [resolve_bundle(bundle, cache) for bundle in wanted.bundles]
    memory = cache / COSTS_FOLDER
    named = list(zip(wanted.bundles, folders, strict=True))
    with RichProgress(Console(stderr=True)) as progress, ExitStack() as stack:
        models = [open_bundle(name, folder, memory, stack) for name, folder in named]
        if wanted.served:
            models += [open_served(name, folder, str(memory), stack) for name, folder in named]
        reference = _reference(wanted.against, models[0].made_for, cache, stack)
        everyone = [*models, *([reference] if reference else [])]
        context = context_of(everyone, wanted.context)
        windows = windows_of(everyone, text, wanted.tokens, context, wanted.stride)
        progress.stage("evaluate", len(everyone) * sum(len(window.inputs) for window in windows), "tokens")
        scores, of_reference = evaluate(models, reference, windows, progress.advance)
        rows = [EvaluatedRow.of(model, quality(each, wanted.seed)) for model, each in zip(models, scores, strict=True)]
        setting = TextSetting(str(wanted.file), len(windows), context, wanted.stride or context, wanted.seed)
        last = EvaluatedRow.of(reference, quality(of_reference, wanted.seed)) if reference else None
        return Evaluation(setting, last, rows)


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
