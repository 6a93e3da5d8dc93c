"""`hexserve inspect`: options."""

from typing import Annotated

import typer


def inspect(
    bundle: Annotated[
        str, typer.Argument(help="'demo', 'demo-diffusion', a bundle folder, a Hugging Face folder or a GGUF file.")
    ],
    graph: Annotated[str | None, typer.Option(help="Draw the tensors of this graph as well.")] = None,
    check_hashes: Annotated[
        bool, typer.Option(help="Read every file and compare its sha256; exit code 1 when one differs.")
    ] = False,
) -> None:
    """Draw what a bundle holds: graphs, tensors, memory per pool, bytes per token."""
    from server.commands.inspect.show import show

    raise typer.Exit(show(bundle, graph, check_hashes))
