"""`hexserve eval`: options, their limits, and what they name."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from server.commands.compile import need_compiler
from server.commands.exit_codes import check_folder, refuse


def evaluate_command(
    bundles: Annotated[
        list[str],
        typer.Argument(metavar="BUNDLE...", help="Bundle folders, or 'demo', Hugging Face folders and GGUF files."),
    ],
    text: Annotated[Path, typer.Option(help="Text file (UTF-8) that the models have not been trained on.")],
    against: Annotated[
        str, typer.Option(metavar="FOLDER", help="What they are compared with: a float bundle, or the checkpoint.")
    ] = "",
    tokens: Annotated[int, typer.Option(min=0, help="Most tokens of the text; 0 = all.")] = 4096,
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
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all figures to this file.")] = None,
) -> None:
    """Measure how well bundles predict a text, and how near they are to the float model."""
    need_compiler("an evaluation")
    from server.commands.evaluation import evaluated, run_evaluation

    check_folder(json_file)
    if context == 1:
        refuse("--context must be at least 2, or 0: a token is predicted from one before it")
    if context and stride > context:
        refuse(f"--stride {stride} is more than --context {context}: tokens between two windows would be left out")
    evaluate = partial(evaluated, bundles, text, against, tokens, context, stride, seed, served)
    raise typer.Exit(run_evaluation(evaluate, json_file))
