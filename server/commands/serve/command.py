"""`hexserve serve`: one flag for each setting."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from server.commands.exit_codes import refuse
from server.settings import RENAMED, Option, SettingsError, Value, flag_name, load_settings, options


def _serve(source: str | None = None, config: Path | None = None, **given: Value | list[str] | None) -> None:
    """Serve a model over HTTP. A flag wins over HEXSERVE_<NAME>, that over the TOML file."""
    flags = {key: ",".join(value) or None if isinstance(value, list) else value for key, value in given.items()}
    if source is not None:
        if not source.strip():
            refuse("SOURCE must not be empty; leave it out to serve the embedded demo model")
        if flags.get("bundle") not in (None, source):
            refuse(f"SOURCE is {source!r} and --bundle is {flags['bundle']!r}: give one of them")
        flags["bundle"] = source
    try:
        settings = load_settings(flags, os.environ, config)
    except SettingsError as error:
        refuse(error)
    from server.commands.serve.start import start

    raise typer.Exit(start(settings))


def _flag(option: Option) -> inspect.Parameter:
    text = option.bounds.help
    if option.bounds.choices:
        text += f" One of {', '.join(option.bounds.choices)}."
    declarations = [f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool else option.flag]
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
    source: Any = typer.Argument(None, help="What to serve; the same as --bundle.", show_default=False)
    own = [
        inspect.Parameter("source", inspect.Parameter.KEYWORD_ONLY, default=source, annotation=str | None),
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=config, annotation=Path | None),
    ]
    flags = [_flag(option) for option in options() if not option.bounds.is_secret]
    signature = inspect.Signature([*own, *flags, *map(_renamed_flag, RENAMED)])
    setattr(command, "__signature__", signature)  # noqa: B010 (mypy knows no __signature__)
    return command


serve = _with_flags(_serve)
