"""`hexserve serve`: one flag for each setting."""

import inspect
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import typer

from server.commands.exit_codes import refuse
from server.options.bounds import Value
from server.settings import RENAMED, Option, Settings, SettingsError, flag_name, load_settings, options

ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType({"idle_unload_s": ("--idle-unload",)})


def _serve(sources: list[str] | None = None, config: Path | None = None, **given: Value | list[str] | None) -> None:
    """Serve a model, or several, over HTTP. A flag wins over HEXSERVE_<NAME>, that over the TOML file."""
    settings = settings_of(sources, config, given, os.environ)
    from server.commands.serve.start import start
    from server.commands.version import version_text
    from server.tracing.wanted import TracingError, tracing_layers

    try:
        with tracing_layers(settings.otel, version_text()) as layers:
            code = start(settings, layers=layers)
    except TracingError as error:
        refuse(error)
    raise typer.Exit(code)


def settings_of(
    sources: list[str] | None,
    config: Path | None,
    given: Mapping[str, Value | list[str] | None],
    environment: Mapping[str, str],
) -> Settings:
    """The settings of a command line; ends the command when they cannot be used."""
    flags = {key: ",".join(value) or None if isinstance(value, list) else value for key, value in given.items()}
    if sources:
        _take_sources(sources, flags)
    try:
        return load_settings(flags, environment, config)
    except SettingsError as error:
        refuse(error)


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


def _flag(option: Option) -> inspect.Parameter:
    text = option.bounds.help
    if option.bounds.choices:
        text += f" One of {', '.join(option.bounds.choices)}."
    declarations = [f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool else option.flag]
    declarations += ALIASES.get(option.key, ())
    default = str(option.default).lower() if option.kind is bool else option.default
    info: Any = typer.Option(None, *declarations, help=text, show_default=str(default) if default != "" else False)
    kind = list[str] if option.bounds.is_repeatable else option.kind
    return inspect.Parameter(option.key, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind | None)


def _renamed_flag(key: str) -> inspect.Parameter:
    """A flag that load_settings refuses with its new name."""
    info: Any = typer.Option(None, flag_name(key), hidden=True)
    return inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=str | None)


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """typer reads a command's flags from its signature: give it one flag per setting."""
    config: Any = typer.Option(None, "--config", help="TOML file with settings (or HEXSERVE_CONFIG).")
    sources: Any = typer.Argument(
        None, metavar="[NAME=]SOURCE...", help="What to serve: the first as --bundle, others as --more-models."
    )
    own = [
        inspect.Parameter("sources", inspect.Parameter.KEYWORD_ONLY, default=sources, annotation=list[str] | None),
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=config, annotation=Path | None),
    ]
    flags = [_flag(option) for option in options() if not option.bounds.is_secret]
    signature = inspect.Signature([*own, *flags, *map(_renamed_flag, RENAMED)])
    setattr(command, "__signature__", signature)  # noqa: B010 (mypy knows no __signature__)
    return command


serve = _with_flags(_serve)
