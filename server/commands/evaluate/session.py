"""One run of `hexserve eval`: models read a text, are timed and given tasks, with progress; then all is reported."""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from engine.compile.progress import RichProgress
from engine.demo.location import SHIPPED
from engine.errors import BundleError, CompileError, EngineFailure
from engine.evaluation.evaluate import context_of, evaluate, windows_of
from engine.evaluation.facts import BundleFacts, bundle_facts
from engine.evaluation.models import EvaluatedModel, open_bundle, open_reference
from engine.evaluation.served import open_served
from engine.evaluation.statistics import quality
from engine.evaluation.vocabulary import TokenVocabulary, evaluated_text
from engine.sources.resolve import COSTS_FOLDER, cache_folder, resolve_bundle
from server.commands.evaluate.lm_eval import LmEvalFailed, TaskFigures, TaskRequest, run_lm_eval
from server.commands.evaluate.report import EvaluatedRow, Evaluation, TextSetting, print_evaluation, write_json
from server.commands.evaluate.report import write_svg as draw
from server.commands.evaluate.speed import ServedSpeed, TimedBundle, answers_wanted, measure_speed
from server.commands.exit_codes import FAILED, INTERRUPTED, refuse
from server.commands.http_client.address import Unreachable
from server.commands.own_server import ServerFailed, own_model, running_server
from server.settings import SettingsError, load_settings

FILE_WIDTH = 400  # of no terminal: a column for each task, and nothing wraps
VISIBLE = "a"


@dataclass(frozen=True, slots=True)
class TextRequest:
    """The text to predict; against: '' = nothing, tokens, context, stride and served as the command's help says."""

    file: Path
    against: str
    tokens: int
    context: int
    stride: int
    seed: int
    served: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What the command line asks for: of a text and of tasks at least one."""

    bundles: tuple[str, ...]
    text: TextRequest | None
    tasks: TaskRequest | None
    wants_speed: bool


def run_evaluation(wanted: EvaluationRequest, json_file: Path | None, svg_file: Path | None) -> int:
    """Evaluate, print and write; the exit code."""
    try:
        found = _evaluated(wanted)
    except (SettingsError, BundleError, CompileError) as error:
        refuse(error)
    except (EngineFailure, ServerFailed, Unreachable, LmEvalFailed) as error:
        refuse(error, FAILED)
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    console = Console()
    if not console.is_terminal:
        console = Console(width=FILE_WIDTH)
    print_evaluation(console, found)
    for written, file, write in (("Written to", json_file, write_json), ("Drawn in", svg_file, draw)):
        if file is None:
            continue
        try:
            write(file, found)
        except OSError as error:
            refuse(f"{file} cannot be written: {error.strerror or error}")
        console.print(f"{written} {file}", markup=False, highlight=False)
    return 0


def _evaluated(wanted: EvaluationRequest) -> Evaluation:
    text = evaluated_text(wanted.text.file) if wanted.text else ""  # the quickest of all that may be wrong
    cache = cache_folder(load_settings({}, os.environ, None).cache_dir)
    folders = [resolve_bundle(bundle, cache) for bundle in wanted.bundles]
    facts = [bundle_facts(bundle, folder) for bundle, folder in zip(wanted.bundles, folders, strict=True)]
    with RichProgress(Console(stderr=True)) as progress:
        if wanted.text:
            found = _predicted(wanted.text, text, wanted.bundles, folders, cache / COSTS_FOLDER, progress)
        else:
            rows = [EvaluatedRow(name, each.form, each.size) for name, each in zip(wanted.bundles, facts, strict=True)]
            found = Evaluation(None, None, rows)
        own = found.models[: len(folders)]  # behind them the same ones as served
        if wanted.wants_speed:
            for row, speed in zip(own, _timed(folders, facts, progress), strict=True):
                row.speed = speed
    if wanted.tasks:
        for row, folder in zip(own, folders, strict=True):
            row.tasks, row.device = _tasks(wanted.tasks, row.name, folder)
    return found


def _predicted(
    wanted: TextRequest,
    text: str,
    names: Sequence[str],
    folders: Sequence[Path],
    memory: Path,
    progress: RichProgress,
) -> Evaluation:
    with ExitStack() as stack:
        models = [open_bundle(name, folder, memory, stack) for name, folder in zip(names, folders, strict=True)]
        if wanted.served:
            models += [
                open_served(name, folder, str(memory), stack) for name, folder in zip(names, folders, strict=True)
            ]
        reference = _reference(wanted.against, models[0].made_for, memory, stack)
        everyone = [*models, *([reference] if reference else [])]
        context = context_of(everyone, wanted.context)
        windows = windows_of(everyone, text, wanted.tokens, context, wanted.stride)
        progress.stage("evaluate", len(everyone) * sum(len(window.inputs) for window in windows), "tokens")
        scores, of_reference = evaluate(models, reference, windows, progress.advance)
        rows = [EvaluatedRow.of(model, quality(each, wanted.seed)) for model, each in zip(models, scores, strict=True)]
        setting = TextSetting(str(wanted.file), len(windows), context, wanted.stride or context, wanted.seed)
        last = EvaluatedRow.of(reference, quality(of_reference, wanted.seed)) if reference else None
        return Evaluation(setting, last, rows)


def _reference(against: str, context: int, memory: Path, stack: ExitStack) -> EvaluatedModel | None:
    if not against:
        return None
    try:
        source = SHIPPED[against]() if against in SHIPPED else Path(against).expanduser()
    except RuntimeError:
        raise BundleError(f"--against {against} names a home folder that does not exist") from None
    return open_reference(against, source, context, memory, stack)


def _timed(folders: Sequence[Path], facts: Sequence[BundleFacts], progress: RichProgress) -> list[ServedSpeed]:
    """The graphs that read a text are closed by now: each model is in memory once."""
    bundles = []
    for folder, each in zip(folders, facts, strict=True):
        model = each.manifest.model
        said = TokenVocabulary(folder, each.manifest.text, model.vocab).tokens(VISIBLE, 1)
        bundles.append(TimedBundle(folder, model.vocab, each.longest, said[0] if said else 0))
    progress.stage("speed", answers_wanted(len(bundles)), "answers")
    return measure_speed(bundles, progress.advance)


def _tasks(wanted: TaskRequest, name: str, folder: Path) -> tuple[dict[str, TaskFigures], str]:
    """Figures by task, and the device that the server names."""
    print(f"tasks of {name}", file=sys.stderr)
    with running_server(str(folder)) as address:
        model = own_model(address)
        return run_lm_eval(wanted, address, model.name, model.context), model.device
