"""`python -m tools.evaluate`: bundles are served, timed and given tasks of lm-eval; errors are drawn beside.

Needs lm-eval for --tasks: pip install 'lm_eval[api]'. --svg draws what `hexserve eval --json` wrote against the size
on disk, and against the speed with --speed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console

from engine.compile.calibration.statistics import Interval
from engine.errors import BundleError
from engine.evaluation.models import TokenVocabulary, bundle_facts
from engine.sources.resolve import resolve_bundle
from server.commands.evaluate.report import write_json
from server.commands.exit_codes import FAILED, INTERRUPTED, UNUSABLE
from server.commands.http_client import Unreachable
from server.commands.own_server import ServerFailed, running_server, settings_cache
from server.commands.tables import table, wide_console
from server.settings import SettingsError
from tools.evaluate.drawing import Point, error_drawing
from tools.evaluate.lm_eval import LmEvalFailed, TaskFigures, TaskRequest, find_program, run_lm_eval
from tools.evaluate.speed import ANSWER_TOKENS, ROUNDS, Rate, ServedSpeed, TimedBundle, measure_speed

ASK_S = 60.0
VISIBLE = "a"


@dataclass(slots=True)
class ServedRow:
    """What was measured of one bundle; None, {}: nothing."""

    name: str
    speed: ServedSpeed | None = None
    tasks: dict[str, TaskFigures] = field(default_factory=dict)


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m tools.evaluate", description=__doc__)
    parser.add_argument("bundles", nargs="+", metavar="BUNDLE", help="folders, or what `hexserve serve` takes")
    parser.add_argument("--speed", action="store_true", help="serve all in turns and time them")
    parser.add_argument("--tasks", default="", metavar="A,B", help="tasks of lm-eval")
    parser.add_argument("--limit", type=int, default=0, help="most examples of each task; 0 = all")
    parser.add_argument("--include-path", type=Path, help="folder with task files of your own")
    parser.add_argument("--lm-eval-python", type=Path, help="the Python that has lm-eval, if it is another one")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    parser.add_argument("--figures", type=Path, help="what `hexserve eval --json` wrote of these bundles")
    parser.add_argument("--svg", type=Path, help="draw --figures into this file")
    options = parser.parse_args()
    if (options.svg is None) != (options.figures is None):
        parser.error("--svg and --figures go together")
    if not (options.speed or options.tasks or options.svg):
        parser.error("there is nothing to do: give --speed, --tasks or --svg")
    program = find_program(options.lm_eval_python) if options.tasks else ()
    if options.tasks and not program:
        parser.error("--tasks needs lm-eval: pip install 'lm_eval[api]', or name its Python: --lm-eval-python")
    tasks = TaskRequest(tuple(options.tasks.split(",")), options.limit, options.include_path, program)
    try:
        rows = measured(options.bundles, options.speed, tasks if options.tasks else None)
        report(rows, options, wide_console())
    except (SettingsError, BundleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    except (ServerFailed, Unreachable, LmEvalFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def measured(names: Sequence[str], wants_speed: bool, tasks: TaskRequest | None) -> list[ServedRow]:
    """A row for each bundle."""
    rows = [ServedRow(name) for name in names]
    folders = [resolve_bundle(name, settings_cache()) for name in names]
    if wants_speed:
        timed = [timed_bundle(name, folder) for name, folder in zip(names, folders, strict=True)]
        for row, speed in zip(rows, measure_speed(timed), strict=True):
            row.speed = speed
    if tasks is not None:
        for row, folder in zip(rows, folders, strict=True):
            print(f"tasks of {row.name}", file=sys.stderr)
            with running_server(str(folder)) as address:
                row.tasks = run_lm_eval(tasks, address, *served_model(address))
    return rows


def timed_bundle(name: str, folder: Path) -> TimedBundle:
    """What the speed is measured of; BundleError for one that predicts no tokens."""
    facts = bundle_facts(name, folder)
    model = facts.manifest.model
    said = TokenVocabulary(folder, facts.manifest.text, model.vocab).tokens(VISIBLE, 1)
    return TimedBundle(folder, model.vocab, facts.longest, said[0] if said else 0)


def served_model(address: str) -> tuple[str, int]:
    """Name of the only model of a server of ours, and the most tokens of prompt and answer. ServerFailed."""
    try:
        (model,) = httpx.get(f"{address}/v1/models", trust_env=False, timeout=ASK_S).json()["data"]
        return str(model["id"]), int(model["max_model_len"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ServerFailed(f"the server at {address} does not say which model it has: {error}") from error


def report(rows: Sequence[ServedRow], options: argparse.Namespace, console: Console) -> None:
    """The table, the file of figures and the drawing. OSError."""
    if options.speed:
        console.print(
            f"Tokens/s: one client, answers of {ANSWER_TOKENS} tokens, the median of {ROUNDS} rounds in turns."
        )
    tasks = list(dict.fromkeys((name, each.headline) for row in rows for name, each in row.tasks.items()))
    headings = ("bundle", "decode\ntokens/s", "prompt\ntokens/s", *(f"{name}\n{metric}" for name, metric in tasks))
    console.print(table(headings, [_cells(row, tasks) for row in rows], words=1))
    if options.json is not None:
        write_json(options.json, {"models": [asdict(row) for row in rows]})
    if options.svg is not None:
        options.svg.write_text(drawn(json.loads(options.figures.read_text(encoding="utf-8")), rows), encoding="utf-8")


def _cells(row: ServedRow, tasks: Sequence[tuple[str, str]]) -> list[str]:
    speed = ["-", "-"] if row.speed is None else [_rate(row.speed.decode), _rate(row.speed.prompt)]
    return [Path(row.name).name, *speed, *(_task(row.tasks.get(name), metric) for name, metric in tasks)]


def _rate(rate: Rate) -> str:
    return f"{rate.value:.4g}\n{rate.low:.4g}..{rate.high:.4g}"


def _task(figures: TaskFigures | None, metric: str) -> str:
    found = figures.metrics.get(metric) if figures else None
    if found is None:
        return "-"
    bounds = found.bounds
    return f"{found.value:.4g}\n" + (f"{bounds[0]:.3g}..{bounds[1]:.3g}" if bounds else "")


def drawn(figures: dict[str, Any], rows: Sequence[ServedRow]) -> str:
    """The drawing of what `hexserve eval --json` wrote: mean KL, or perplexity where nothing was compared with."""
    error = "kl" if figures["reference"] else "perplexity"
    speeds = {row.name: row.speed.decode.value for row in rows if row.speed is not None}
    points = [
        Point(f"{Path(model['name']).name} ({model['form']})", model["size"], interval, speeds.get(model["name"]))
        for model in figures["models"]
        for interval in [Interval(**model["quality"][error])]
    ]
    return error_drawing("Mean KL from the float model" if figures["reference"] else "Perplexity", points)


if __name__ == "__main__":
    sys.exit(main())
