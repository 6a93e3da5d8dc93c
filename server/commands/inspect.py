"""`hexserve inspect`: a bundle found, drawn and compared with its manifest."""

from typing import Annotated

import typer

from engine.errors import BundleError
from server.commands.exit_codes import FAILED, refuse
from server.settings import SettingsError, costs_folder


def inspect(
    bundle: Annotated[
        str,
        typer.Argument(help="An embedded model, a bundle, a Hugging Face folder, a GGUF file or a name."),
    ],
    graph: Annotated[str | None, typer.Option(help="Draw the tensors of this graph as well.")] = None,
    check_hashes: Annotated[
        bool, typer.Option(help="Read every file and compare its sha256; exit code 1 when one differs.")
    ] = False,
) -> None:
    """Draw what a bundle holds, and how long its steps were measured to take: graphs, memory, step times."""
    from rich.console import Console, Group

    from engine.bundle.manifest import load_manifest, verify_hashes
    from engine.sources.resolve import resolve_bundle
    from server.commands.bundle_tables import describe, step_time_tables
    from server.commands.own_server import settings_cache

    try:
        cache = settings_cache()
        folder = resolve_bundle(bundle, cache)
        drawn = Group(describe(folder, graph), *step_time_tables(folder, costs_folder(cache)))
        damaged = verify_hashes(folder, load_manifest(folder)) if check_hashes else []
    except (SettingsError, BundleError) as error:
        refuse(error)
    Console().print(drawn)
    if damaged:
        refuse(f"sha256 differs: {', '.join(damaged)}", FAILED)
    if check_hashes:
        Console().print("sha256 of every file is the manifest's", style="green", highlight=False)
