"""What `hexserve models` tells and removes."""

from pathlib import Path

from rich.table import Column, Table

from engine.demo.location import SHIPPED
from engine.errors import BundleError
from engine.sources.download import megabytes
from engine.sources.fetched import FetchedModel, FetchedModels
from engine.sources.names import LocalPath
from engine.sources.packaged import CatalogueEntry
from engine.sources.resolve import locate
from server.commands.exit_codes import FAILED, refuse
from server.commands.own_server import settings_cache
from server.commands.tables import wide_console
from server.settings import SettingsError


def tell_all() -> None:
    fetched = FetchedModels(settings_cache())
    table = Table(
        Column("name", overflow="fold"), "model", "download", "licence", "for", "on disk", box=None, header_style="bold"
    )
    for name, entry in fetched.entries.items():
        size, abilities = megabytes(entry.bytes), ", ".join(entry.abilities)
        table.add_row(name, entry.title, size, entry.licence, abilities, _size(fetched.on_disk(name)))
    for model in fetched.fetched():
        table.add_row(model.name, "fetched by its name", "", "", "", _size(model))
    wide_console().print(table)


def tell_one(name: str) -> None:
    """The facts of an entry of the catalogue, or of a repository of ours. Ends the command for another name."""
    fetched = FetchedModels(settings_cache())
    entry = fetched.entries.get(name)
    found = fetched.on_disk(name) if entry else next((m for m in fetched.fetched() if m.name == name), None)
    if entry is None and found is None:
        refuse(f"{name} is neither in the catalogue nor fetched; `hexserve models` lists what is")
    table = Table(show_header=False, box=None)
    for key, value in _facts(name, entry, found):
        table.add_row(key, value)
    wide_console().print(table)


def remove_one(name: str) -> None:
    """Remove it and tell how much room that makes. Ends the command when there is nothing of ours."""
    try:
        freed = FetchedModels(settings_cache()).remove(name)
    except OSError as error:
        refuse(f"{name} cannot be removed: {error.strerror or error}", FAILED)
    print(f"{name} is removed, {megabytes(freed)} are free again")


def _facts(name: str, entry: CatalogueEntry | None, found: FetchedModel | None) -> list[tuple[str, str]]:
    facts = [("name", name)]
    if entry is not None:
        packages = entry.package.packages if entry.package else ()
        origin = ", ".join(f"the package {package.name}=={package.version}" for package in packages)
        facts += [("model", entry.title), ("for", ", ".join(entry.abilities)), ("licence", entry.licence)]
        facts += [("download", megabytes(entry.bytes)), ("comes from", origin or entry.repository)]
        if entry.sampling:
            facts.append(("sampling", ", ".join(f"{name} {value:g}" for name, value in entry.sampling.items())))
    else:
        facts.append(("licence", "as the page it comes from says"))
    return [*facts, ("on disk", _size(found)), *([("path", str(found.path))] if found else [])]


def _size(model: FetchedModel | None) -> str:
    return "no" if model is None else megabytes(model.size) + ("" if model.is_whole else ", not whole")


def fetch_one(name: str) -> None:
    """Fetch what a name stands for and tell where it is. Ends the command when that fails."""
    try:
        where = "part of hexserve" if name in SHIPPED else str(locate(name, settings_cache()).path)
    except (BundleError, SettingsError, OSError) as error:
        refuse(error, FAILED)
    entry = FetchedModels(settings_cache()).entries.get(name)
    verb = "run" if entry is None or "chat" in entry.abilities else "serve"
    print(f"{name} is here ({where}): hexserve {verb} {name}")


def tell_plan(name: str) -> None:
    """The files that `fetch_one` would bring, with sizes, and where they come from. Ends the command on failure."""
    fetched = FetchedModels(settings_cache())
    named = fetched.named(name)
    if name in SHIPPED or isinstance(named, LocalPath) or Path(name).exists():
        fetch_one(name)
        return
    try:
        plan = fetched.plan(named)
    except BundleError as error:
        refuse(error, FAILED)
    table = Table("file", "size", "here", box=None, header_style="bold")
    for file in plan.files:
        table.add_row(file.name, megabytes(file.size), "no" if file in plan.missing else "yes")
    wide_console().print(table)
    print(f"{megabytes(plan.size)} would come from {plan.origin} into {plan.folder}; nothing was fetched")
