"""`hexserve pull NAME`: options, and what is said at the end."""

from pathlib import Path
from typing import Annotated

import typer

from engine.hub.catalogue import PRECISIONS, X_ELITE, PullError, find_bundle
from server.commands.exit_codes import FAILED, refuse


def pull(
    name: Annotated[str, typer.Argument(help="Model as Qualcomm AI Hub names it, such as qwen3_4b.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder to make.")] = None,
    precision: Annotated[str | None, typer.Option(help="w4a16 or w4 instead of the first that exists.")] = None,
    chipset: Annotated[str, typer.Option(help="Chipset the binaries are for.")] = X_ELITE,
) -> None:
    """Fetch a ready bundle from Qualcomm AI Hub; an interrupted fetch goes on where it stopped."""
    from server.commands.pull.fetch import fetch_bundle

    try:
        url = find_bundle(name, chipset, (precision,) if precision else PRECISIONS)
        folder = fetch_bundle(url, output)
    except PullError as error:
        refuse(error, FAILED)
    print(f"{folder} is ready: hexserve serve {folder}")
