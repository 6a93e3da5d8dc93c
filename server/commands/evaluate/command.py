"""`hexserve eval`: options, their limits, and what they name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from server.commands.evaluate.lm_eval import TaskRequest, find_program
from server.commands.exit_codes import refuse

TOKENS = 4096


def evaluate_command(
    bundles: Annotated[
        list[str],
        typer.Argument(metavar="BUNDLE...", help="Bundle folders, or 'demo', Hugging Face folders and GGUF files."),
    ],
    text: Annotated[
        Path | None, typer.Option(help="Text file (UTF-8) that the models have not been trained on.")
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="FOLDER", help="What they are compared with: a float bundle, or the checkpoint.")
    ] = "",
    tokens: Annotated[int | None, typer.Option(min=0, help=f"Most tokens of the text ({TOKENS}); 0 = all.")] = None,
    context: Annotated[
        int, typer.Option(min=0, help="Tokens of a window; 0 = 512, or as many as all models hold.")
    ] = 0,
    stride: Annotated[
        int, typer.Option(min=0, help="From one window to the next; 0 = side by side, less = overlapping.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the confidence intervals.")] = 0,
    served: Annotated[
        bool, typer.Option("--served", help="Also through the engine that serves, by default settings: a row each.")
    ] = False,
    tasks: Annotated[str, typer.Option(metavar="A,B", help="Tasks of lm-eval, which has to be installed.")] = "",
    limit: Annotated[int, typer.Option(min=0, help="Most examples of each task; 0 = all.")] = 0,
    include_path: Annotated[Path | None, typer.Option(help="Folder with task files of your own.")] = None,
    lm_eval_python: Annotated[
        Path | None, typer.Option(help="The Python that has lm-eval, if it is in an environment of its own.")
    ] = None,
    speed: Annotated[
        bool | None, typer.Option("--speed/--no-speed", help="Serve the bundles and time them; left out: with --svg.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
    svg_file: Annotated[
        Path | None, typer.Option("--svg", help="Draw error against size on disk and speed into this file.")
    ] = None,
) -> None:
    """Measure how well bundles predict a text, how near they are to the float model, and how they do in tasks."""
    from server.commands.evaluate.session import EvaluationRequest, TextRequest, run_evaluation

    for option, file in (("--json", json_file), ("--svg", svg_file)):
        if file is not None and not file.absolute().parent.is_dir():
            refuse(f"{option} {file} cannot be written: its folder does not exist")
    if text is None and not tasks:
        refuse("there is nothing to measure: give --text FILE, --tasks NAMES or both")
    if text is None:
        options = {"--against": against, "--tokens": tokens, "--context": context, "--stride": stride, "--seed": seed}
        options |= {"--served": served}
        _refuse_idle(options | {"--svg": svg_file}, "--text")
    if context == 1:
        refuse("--context must be at least 2, or 0: a token is predicted from one before it")
    if context and stride > context:
        refuse(f"--stride {stride} is more than --context {context}: tokens between two windows would be left out")
    most = TOKENS if tokens is None else tokens
    predicted = None if text is None else TextRequest(text, against, most, context, stride, seed, served)
    wanted = EvaluationRequest(
        tuple(bundles),
        predicted,
        _task_request(tasks, limit, include_path, lm_eval_python),
        svg_file is not None if speed is None else speed,
    )
    raise typer.Exit(run_evaluation(wanted, json_file, svg_file))


def _task_request(tasks: str, limit: int, folder: Path | None, python: Path | None) -> TaskRequest | None:
    names = tuple(name for part in tasks.split(",") if (name := part.strip()))
    if not names:
        _refuse_idle({"--limit": limit, "--include-path": folder, "--lm-eval-python": python}, "--tasks")
        if tasks:
            refuse(f"--tasks {tasks} names no task")
        return None
    if folder is not None and not folder.is_dir():
        refuse(f"--include-path {folder} is no folder")
    if python is not None and not python.is_file():
        refuse(f"--lm-eval-python {python} does not exist")
    program = find_program(python)
    if not program:
        refuse("--tasks needs lm-eval: pip install 'lm_eval[api]', or name the Python that has it: --lm-eval-python")
    return TaskRequest(names, limit, folder, program)


def _refuse_idle(options: Mapping[str, object], needed: str) -> None:
    """Options that would be ignored."""
    for option, value in options.items():
        if value:
            refuse(f"{option} is for {needed}, which is not given")
