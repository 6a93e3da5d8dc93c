"""The command line: one typer app, one line for each command. Importing it loads nothing heavy, so --help is quick."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from engine.errors import BundleError, CompileError, EngineFailure, UnusableInput
from server.commands.bench.command import bench
from server.commands.chat import chat, run_command
from server.commands.compile import compile_command, export_blocks_command
from server.commands.doctor import doctor
from server.commands.evaluate import evaluate_command
from server.commands.exit_codes import FAILED, CommandFailed, refuse
from server.commands.models import inspect, models_app, pull
from server.commands.serve.command import serve
from server.commands.service.command import service_app


class Commands(TyperGroup):
    """Where any command ends that cannot do what it was asked for."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (UnusableInput, BundleError, CompileError) as error:
            refuse(error)
        except (EngineFailure, CommandFailed) as error:
            refuse(error, FAILED)


app = typer.Typer(
    name="hexserve", cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from server.commands.version import version_text

        print(f"hexserve {version_text()}")
        raise typer.Exit


@app.callback()
def _hexserve(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """OpenAI-compatible inference server for fixed-shape NPU graphs."""


app.command("run")(run_command)
app.command("serve")(serve)
app.add_typer(models_app, name="models")
app.add_typer(service_app, name="service")
app.command("chat")(chat)
app.command("inspect")(inspect)
app.command("doctor")(doctor)
app.command("pull")(pull)
app.command("compile", context_settings={"help_option_names": ["--help", "-h"]})(compile_command)
app.command("export-blocks")(export_blocks_command)
app.command("eval")(evaluate_command)
app.command("bench")(bench)


def run() -> None:
    app(prog_name="hexserve")
