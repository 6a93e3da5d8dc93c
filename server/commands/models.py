"""`hexserve models list|show|remove`, and `hexserve pull`."""

from typing import Annotated

import typer

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
