"""lm-eval as a program of its own: its command line, what it needs of the environment, and the file it writes."""

import importlib.util
import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.processes import child_environment, package_command

PACKAGE = "lm_eval"
PROGRAMS = ("lm_eval", "lm-eval")
AT_ONCE = 4
TRIES = 3
# The metric of a task's column: the first of these that it has, or else its first one.
HEADLINES = ("acc_norm", "acc", "exact_match")
Z95 = 1.959964  # of a normal distribution


class LmEvalFailed(Exception):
    """lm-eval ended without figures; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """What to run. limit: examples of each task, 0 = all. folder: of more task files. program: that runs lm-eval."""

    names: tuple[str, ...]
    limit: int
    folder: Path | None
    program: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TaskMetric:
    """One metric with lm-eval's standard error, None where it has none."""

    value: float
    stderr: float | None

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Where it lies with a probability of 95 %, if the error is normally distributed.

        None without an error, and for one of 0: it comes of examples that all went the same way, and says nothing.
        """
        return None if not self.stderr else (self.value - Z95 * self.stderr, self.value + Z95 * self.stderr)


@dataclass(frozen=True, slots=True)
class TaskFigures:
    """A task of one model. metrics: by name, with the filter behind a comma where there is one. headline: of them."""

    headline: str
    metrics: dict[str, TaskMetric]


def find_program(python: Path | None) -> tuple[str, ...]:
    """The beginning of a command line that runs lm-eval: of a named Python, of ours, or on the path; () = nowhere."""
    if python is not None:
        return (str(python), "-m", PACKAGE)
    if importlib.util.find_spec(PACKAGE) is not None:
        return tuple(package_command(PACKAGE))
    return next(((found,) for name in PROGRAMS if (found := shutil.which(name))), ())


def run_lm_eval(wanted: TaskRequest, address: str, model: str, context: int) -> dict[str, TaskFigures]:
    """Run tasks against a server; figures by task, in lm-eval's order. LmEvalFailed.

    context: tokens that the model holds. What lm-eval says while it runs goes to stderr.
    """
    with tempfile.TemporaryDirectory(prefix="hexserve-") as folder:
        command = lm_eval_command(wanted, address, model, context, Path(folder))
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=child_environment(spared(os.environ)),
                check=False,
            )
        except OSError as error:
            raise LmEvalFailed(f"{command[0]} cannot be started: {error.strerror or error}") from error
        if done.returncode:
            raise LmEvalFailed(f"lm-eval ended with status {done.returncode}; what it said stands above")
        written = next(Path(folder).rglob("results*.json"), None)
        if written is None:
            raise LmEvalFailed("lm-eval wrote no results")
        return read_results(json.loads(written.read_text(encoding="utf-8")), wanted.names)


def lm_eval_command(wanted: TaskRequest, address: str, model: str, context: int, output: Path) -> list[str]:
    """Its whole command line."""
    settings = {
        "model": model,
        "base_url": f"{address}/v1/completions",
        "max_length": context,
        "num_concurrent": AT_ONCE,
        "max_retries": TRIES,
    }
    options = {
        "--model": "local-completions",
        "--model_args": ",".join(f"{name}={value}" for name, value in settings.items()),
        "--tasks": ",".join(wanted.names),
        "--output_path": str(output),
    }
    if wanted.limit:
        options["--limit"] = str(wanted.limit)
    if wanted.folder is not None:
        options["--include_path"] = str(wanted.folder)
    return [*wanted.program, *(word for option in options.items() for word in option)]


def spared(ours: Mapping[str, str]) -> dict[str, str]:
    """Variables by which the loopback address is asked without a proxy, besides what our environment spares."""
    hosts = ",".join(filter(None, (ours.get("NO_PROXY") or ours.get("no_proxy"), "127.0.0.1")))
    return {"NO_PROXY": hosts, "no_proxy": hosts}


def read_results(content: Mapping[str, Any], asked: Sequence[str]) -> dict[str, TaskFigures]:
    """Figures of what was asked for, groups as one; of a tag the tasks that it stands for. LmEvalFailed for none."""
    results: Mapping[str, Mapping[str, Any]] = content["results"]
    inner = {name for members in content.get("group_subtasks", {}).values() for name in members}
    figures = {name: _figures(found) for name, found in results.items() if name in asked or name not in inner}
    kept = {name: found for name, found in figures.items() if found is not None}
    if not kept:
        raise LmEvalFailed("lm-eval has no figures for these tasks")
    return kept


def _figures(found: Mapping[str, Any]) -> TaskFigures | None:
    metrics = {}
    for key, value in found.items():
        name, _, cut = key.partition(",")
        number = _number(value)
        if cut and not name.endswith("_stderr") and number is not None:
            metrics[name if cut == "none" else key] = TaskMetric(number, _number(found.get(f"{name}_stderr,{cut}")))
    if not metrics:
        return None
    by_name = {key.partition(",")[0]: key for key in reversed(metrics)}
    return TaskFigures(next((by_name[name] for name in HEADLINES if name in by_name), next(iter(metrics))), metrics)


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) else None
