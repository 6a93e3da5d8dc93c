"""What `hexserve compile` makes of its options, without compiling."""

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import typer
from typer.testing import CliRunner

from engine.compile.arguments import CompileArguments
from engine.sources.names import Located
from server.commands import compile as command


def compile_arguments(words: Sequence[str]) -> CompileArguments:
    """The arguments that a command line stands for; its source need not exist."""
    app = typer.Typer()
    app.command()(command.compile_command)
    with (
        mock.patch("engine.compile.__main__.run_compiler", return_value=0) as compiler,
        mock.patch("engine.sources.resolve.locate", lambda text, _: Located(Path(text), "")),
    ):
        result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    (arguments,) = compiler.call_args.args
    assert isinstance(arguments, CompileArguments)
    return arguments
