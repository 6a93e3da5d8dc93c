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
OWN_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}  # the command parses them itself

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


def _serve(source: str | None = None, config: Path | None = None, **flags: Value | None) -> None:
    """Serve a model over HTTP. A flag wins over HEXSERVE_<NAME>, that over the TOML file."""
    if source is not None and flags.get("bundle") not in (None, source):
        print(f"error: SOURCE is {source!r} and --bundle is {flags['bundle']!r}: give one of them", file=sys.stderr)
        raise typer.Exit(USER_ERROR)
    if source is not None:
        flags["bundle"] = source
    try:
        settings = load_settings(flags, os.environ, config)
    except SettingsError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(USER_ERROR) from None
    from server.commands.serve import start  # noqa: PLC0415

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
    source: Any = typer.Argument(None, help="What to serve; the same as --bundle.", show_default=False)
    own = [
        inspect.Parameter("source", inspect.Parameter.KEYWORD_ONLY, default=source, annotation=str | None),
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=config, annotation=Path | None),
    ]
    parameters = [*own, *(_flag(option) for option in options() if not option.bounds.is_secret)]
    setattr(command, "__signature__", inspect.Signature(parameters))  # noqa: B010 (mypy knows no __signature__)
    return command


app.command("serve")(_with_flags(_serve))


@app.command("compile", context_settings=OWN_ARGUMENTS, add_help_option=False)
def _compile(context: typer.Context) -> None:
    """Compile a Hugging Face folder into a bundle; `hexserve compile --help` lists the options."""
    if importlib.util.find_spec("onnx") is None:
        print("error: compiling needs more packages: pip install 'hexserve[compile]'", file=sys.stderr)
        raise typer.Exit(USER_ERROR)
    from engine.compile.__main__ import main as compile_main  # noqa: PLC0415

    raise typer.Exit(compile_main(context.args))


@app.command("bench", context_settings=OWN_ARGUMENTS, add_help_option=False)
def _bench(context: typer.Context) -> None:
    """Measure servers under load; `hexserve bench --help` lists the options."""
    from server.commands.bench.command import bench  # noqa: PLC0415

    _forward(bench, context)


@app.command("chat", context_settings=OWN_ARGUMENTS, add_help_option=False)
def _chat(context: typer.Context) -> None:
    """Talk to a server or a bundle in the terminal; `hexserve chat --help` lists the options."""
    from server.commands.chat.terminal import chat  # noqa: PLC0415

    _forward(chat, context)


@app.command("pull", context_settings=OWN_ARGUMENTS, add_help_option=False)
def _pull(context: typer.Context) -> None:
    """Fetch a ready bundle from Qualcomm AI Hub (extra `hub`); `hexserve pull --help` lists the options."""
    from server.commands.pull import pull  # noqa: PLC0415

    _forward(pull, context)


@app.command("simulate", context_settings=OWN_ARGUMENTS, add_help_option=False)
def _simulate(context: typer.Context) -> None:
    """Play the scheduler on published pass times of a device; `hexserve simulate --help` lists the options."""
    from server.commands.simulate.command import simulate  # noqa: PLC0415

    _forward(simulate, context)


def _forward(command: Callable[..., None], context: typer.Context) -> None:
    """Run a command whose options were not known when ours were declared."""
    inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    inner.command()(command)
    inner(context.args, prog_name=context.command_path)


@app.command("inspect")
def _inspect(
    bundle: Annotated[str, typer.Argument(help="'demo', a bundle folder or a Hugging Face folder.")],
    graph: Annotated[str | None, typer.Option(help="Draw the tensors of this graph as well.")] = None,
    check_hashes: Annotated[bool, typer.Option(help="Read every file and compare its sha256.")] = False,
) -> None:
    """Draw what a bundle holds: graphs, tensors, memory per pool, bytes per token."""
    from server.commands.inspect.command import show  # noqa: PLC0415

    raise typer.Exit(show(bundle, graph, check_hashes))


@app.command("doctor")
def _doctor(
    report: Annotated[
        Path | None, typer.Option(help="Also write what was found to this file, for a bug report.")
    ] = None,
    bundle: Annotated[Path | None, typer.Option(help="An NPU bundle folder to examine as well.")] = None,
) -> None:
    """Tell what this machine can run: providers, driver, chip, a test graph on the NPU against the CPU."""
    from server.commands.doctor import doctor  # noqa: PLC0415

    raise typer.Exit(doctor(report, bundle))
