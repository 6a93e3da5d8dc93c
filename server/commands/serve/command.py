"""`hexserve serve`: one flag for each setting."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from engine.config import Trait
from server.commands.exit_codes import refuse
from server.settings import Option, Settings, Value, load_settings, options

Sources = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=]SOURCE...", help="What to serve: the first as --bundle, others as --more-models."),
]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="TOML file with settings (or HEXSERVE_CONFIG).")]


FURTHER_NAMES = {"idle_unload_s": ["--idle-unload"], "devices": ["--place"]}


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """The command with a flag for each setting beside its own parameters: typer reads flags from a signature."""
    own = list(inspect.signature(command).parameters.values())[:-1]  # behind them **flags
    flags = [
        inspect.Parameter(option.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_flag(option))
        for option in options()
        if not option.has(Trait.SECRET)
    ]
    setattr(command, "__signature__", inspect.Signature([*own, *flags]))  # noqa: B010 (mypy knows no __signature__)
    return command


def _flag(option: Option) -> Any:
    text = option.help + (f" One of {', '.join(option.choices)}." if option.choices else "")
    name = f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool else option.flag
    names = [name, *FURTHER_NAMES.get(option.key, ())]
    default = str(option.default).lower() if option.kind is bool else str(option.default)
    kind = list[str] if option.has(Trait.REPEATABLE) else option.kind
    return Annotated[kind | None, typer.Option(*names, help=text, show_default=default or False)]


@with_settings
def serve(sources: Sources = None, config: ConfigFile = None, **flags: Value | list[str] | None) -> None:
    """Serve a model, or several, over HTTP. A flag wins over HEXSERVE_<NAME>, that over the TOML file."""
    settings = settings_of(sources, config, flags, os.environ)
    from server.commands.serve.start import start
    from server.commands.version import version_text
    from server.observability.tracing import tracing_layers

    with tracing_layers(settings.otel, version_text()) as layers:
        raise typer.Exit(start(settings, layers=layers))


def settings_of(
    sources: list[str] | None,
    config: Path | None,
    given: Mapping[str, Value | list[str] | None],
    environment: Mapping[str, str],
) -> Settings:
    flags = {key: ",".join(value) or None if isinstance(value, list) else value for key, value in given.items()}
    if sources:
        _take_sources(sources, flags)
    return load_settings(flags, environment, config)


def _take_sources(sources: list[str], flags: dict[str, Value | None]) -> None:
    """The first source is --bundle, the others are --more-models."""
    source, *further = sources
    if not all(text.strip() for text in sources):
        refuse("SOURCE must not be empty; leave it out to serve the embedded demo model")
    if flags.get("bundle") not in (None, source):
        refuse(f"SOURCE is {source!r} and --bundle is {flags['bundle']!r}: give one of them")
    if any("," in text for text in further):
        refuse("SOURCE must not hold a comma")
    if further and flags.get("more_models") is not None:
        refuse("give further models as SOURCE or as --more-models, not both")
    flags["bundle"] = source
    flags["more_models"] = ",".join(further) or flags.get("more_models")
