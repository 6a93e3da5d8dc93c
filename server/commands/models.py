"""`hexserve models list|show|remove`, `hexserve pull`, and `hexserve inspect`: a bundle compared with its manifest."""

from typing import Annotated

import typer

from server.commands.exit_codes import FAILED, refuse
from server.settings import costs_folder

models_app = typer.Typer(
    help="Models with a short name, and those that were fetched: list, show, remove.", invoke_without_command=True
)
_Name = Annotated[str, typer.Argument(help="A name as `hexserve models` lists it.")]


@models_app.callback()
def _models(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_models()


@models_app.command("list")
def list_models() -> None:
    """Names, sizes, licences, what each model is for, and what is on disk."""
    from server.commands.fetched_models import tell_all

    tell_all()


@models_app.command("show")
def show(name: _Name) -> None:
    """Everything that is known of one model."""
    from server.commands.fetched_models import tell_one

    tell_one(name)


@models_app.command("remove")
def remove(name: _Name) -> None:
    """Remove what was fetched under a name; what other programs fetched stays."""
    from server.commands.fetched_models import remove_one

    remove_one(name)


def pull(
    name: Annotated[str, typer.Argument(help="Any name that `hexserve serve` takes.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell which files would come.")] = False,
) -> None:
    """Fetch a model without serving it; an interrupted fetch goes on where it stopped."""
    from server.commands.fetched_models import fetch_one, tell_plan

    (tell_plan if dry_run else fetch_one)(name)


def inspect(
    bundle: Annotated[
        str, typer.Argument(help="An embedded model, a bundle, a Hugging Face folder, a GGUF file or a name.")
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

    cache = settings_cache()
    folder = resolve_bundle(bundle, cache)
    drawn = Group(describe(folder, graph), *step_time_tables(folder, costs_folder(cache)))
    damaged = verify_hashes(folder, load_manifest(folder)) if check_hashes else []
    Console().print(drawn)
    if damaged:
        refuse(f"sha256 differs: {', '.join(damaged)}", FAILED)
    if check_hashes:
        Console().print("sha256 of every file is the manifest's", style="green", highlight=False)
