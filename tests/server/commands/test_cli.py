"""The command line: what it prints, how it ends, and what it does not load."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.commands.cli import app
from server.settings import options

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "onnx", "onnxruntime", "transformers", "safetensors"}
SERVING = {"fastapi", "uvicorn", "tokenizers", "numpy", "pydantic", "jinja2"}


def loaded(statement: str) -> set[str]:
    """Names of the top-level modules a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_help_loads_nothing_of_the_server() -> None:
    assert not loaded("import server.commands.cli") & (HEAVY | SERVING)


def test_serving_loads_no_compiler_and_no_graph_runtime() -> None:
    modules = loaded("import server.commands.serve, server.app, server.run")
    assert {"fastapi", "uvicorn", "tokenizers"} <= modules
    assert not modules & HEAVY


def test_every_setting_is_a_flag() -> None:
    from server.commands import cli

    parameters = cli._serve.__signature__.parameters  # type: ignore[attr-defined]
    assert set(parameters) == {"source", "config"} | {option.key for option in options() if not option.bounds.is_secret}
    assert CliRunner().invoke(app, ["serve", "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["serve", "--port", "70000"], {}, "error: --port must be at most 65535, not 70000"),
        (["serve"], {"HEXSERVE_THREDS": "2"}, "error: unknown environment variable HEXSERVE_THREDS"),
        (["serve", "--config", "/nowhere.toml"], {}, "error: settings file /nowhere.toml cannot be read"),
        (["serve", "--port", "0", "--bundle", "/nowhere"], {}, "error: /nowhere does not exist"),
        (["inspect", "/nowhere"], {}, "error: /nowhere does not exist"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments: list[str], environment: dict[str, str], expected: str) -> None:
    result = CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == 2
    assert result.stderr.startswith(expected)
    assert result.stderr.count("\n") == 1


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(app, ["serve", "--port", port])
    assert result.exit_code == 2
    assert result.stderr == f"error: cannot listen on 127.0.0.1 port {port}: Address already in use\n"


def test_compile_hands_its_arguments_on(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compile", str(tmp_path / "none"), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


@pytest.mark.parametrize("command", ["compile", "bench", "chat", "simulate"])
def test_commands_with_options_of_their_own_explain_them(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], prog_name="hexserve")
    assert result.exit_code == 0
    assert f"hexserve {command}" in result.output
    assert CliRunner().invoke(app, [command, "--no-such-option"]).exit_code == 2


def test_an_unknown_flag_is_refused() -> None:
    assert CliRunner().invoke(app, ["serve", "--prot", "1"]).exit_code == 2
