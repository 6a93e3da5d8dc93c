"""The command `hexserve`. Every command imports what it needs when it runs, so that --help is quick."""

import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from server.settings import Option, SettingsError, Value, load_settings, options

USER_ERROR = 2
INTERRUPTED = 130
LATER_COMMANDS = ("server.bench", "server.chat_terminal")  # each has `register(app)`; not needed for serving

app = typer.Typer(
    name="hexserve",
    help="OpenAI-compatible inference server for fixed-shape NPU graphs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _serve(config: Path | None = None, **flags: Value | None) -> None:
    """Serve a model over HTTP. A flag wins over HEXSERVE_<NAME>, that over the TOML file."""
    try:
        settings = load_settings(flags, os.environ, config)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None
    from server.start import start  # noqa: PLC0415

    raise typer.Exit(start(settings))


def _flag(option: Option) -> inspect.Parameter:
    text = option.bounds.help
    if option.bounds.choices:
        text += f" One of {', '.join(option.bounds.choices)}."
    declarations = [f"{option.flag}/--no-{option.flag[2:]}" if option.kind is bool else option.flag]
    default = str(option.default).lower() if option.kind is bool else option.default
    info: Any = typer.Option(None, *declarations, help=text, show_default=str(default) if default != "" else False)
    return inspect.Parameter(option.key, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=option.kind | None)


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """typer reads a command's flags from its signature: give it one flag per setting."""
    config: Any = typer.Option(None, "--config", help="TOML file with settings (or HEXSERVE_CONFIG).")
    first = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=config, annotation=Path | None)
    parameters = [first, *(_flag(option) for option in options())]
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010 (mypy knows no __signature__)
    return command


app.command("serve")(_with_flags(_serve))


@app.command(
    "compile",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def _compile(context: typer.Context) -> None:
    """Compile a Hugging Face folder into a bundle; `hexserve compile --help` lists the options."""
    if importlib.util.find_spec("onnx") is None:
        print("error: compiling needs more packages: pip install 'hexserve[compile]'", file=sys.stderr)
        raise typer.Exit(USER_ERROR)
    from engine.compile.__main__ import main as compile_main  # noqa: PLC0415

    raise typer.Exit(compile_main(context.args))


@app.command("inspect")
def _inspect(
    bundle: Annotated[str, typer.Argument(help="'demo', a bundle folder or a Hugging Face folder.")],
    graph: Annotated[str | None, typer.Option(help="Draw the tensors of this graph as well.")] = None,
    check_hashes: Annotated[bool, typer.Option(help="Read every file and compare its sha256.")] = False,
) -> None:
    """Draw what a bundle holds: graphs, tensors, memory per pool, bytes per token."""
    from server.show import show  # noqa: PLC0415

    raise typer.Exit(show(bundle, graph, check_hashes))
