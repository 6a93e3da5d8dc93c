"""The command line: what it prints, how it ends, and what it does not load."""

import inspect
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from engine.config import Trait
from server.commands.cli import app
from server.commands.exit_codes import FAILED, INTERRUPTED, UNUSABLE
from server.commands.serve.command import serve
from server.settings import Settings, options

ROOT = Path(__file__).parents[3]
HEAVY = {"torch", "onnx", "onnxruntime", "transformers", "safetensors", "huggingface_hub"}
SERVING = {"fastapi", "uvicorn", "tokenizers", "numpy", "pydantic", "jinja2"}
CLIENT = {"httpx", "rich", "prometheus_client"}
COMMANDS = [
    *(
        "run",
        "serve",
        "models",
        "chat",
        "inspect",
        "doctor",
        "pull",
        "compile",
        "export-blocks",
        "eval",
        "bench",
    ),
    "service",
]


def loaded(statement: str) -> set[str]:
    """Names of the top-level modules a fresh interpreter has after a statement."""
    code = f"import sys\n{statement}\nprint(' '.join({{name.split('.')[0] for name in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(result.stdout.split())


def test_help_loads_nothing_of_the_server() -> None:
    assert not loaded("import server.commands.cli") & (HEAVY | SERVING | CLIENT)


def test_serving_loads_no_compiler_and_no_graph_runtime() -> None:
    modules = loaded("import server.commands.serve.start, server.app, server.run")
    assert {"fastapi", "uvicorn", "tokenizers"} <= modules
    assert not modules & (HEAVY | {"httpx"})


def test_until_the_workers_start_no_client_of_servers_is_loaded() -> None:
    assert "httpx" not in loaded("import server.commands.serve.start, server.run")


def test_what_commands_share_is_not_the_benchs() -> None:
    code = "import sys, server.commands.chat_terminal\nprint(any('commands.bench' in name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_every_setting_is_a_flag() -> None:
    parameters = inspect.signature(serve).parameters
    known = {option.key: option.flag for option in options() if not option.has(Trait.SECRET)}
    assert set(parameters) == {"sources", "config", *known}
    shown = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert all(flag in shown.output for flag in known.values())


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["serve", "--port", "70000"], {}, "error: --port must be less than or equal to 65535, not 70000"),
        (["serve"], {"HEXSERVE_THREDS": "2"}, "error: unknown environment variable HEXSERVE_THREDS"),
        (["serve", "--config", "/nowhere.toml"], {}, "error: settings file /nowhere.toml cannot be read"),
        (["serve", "--port", "0", "--bundle", "/nowhere"], {}, "error: /nowhere does not exist"),
        (["serve", ""], {}, "error: SOURCE must not be empty"),
        (["serve", "--bundle", " "], {}, "error: --bundle must have at least 1 character"),
        (["serve", "--host", ""], {}, "error: --host must have at least 1 character"),
        (["serve"], {"HEXSERVE_HOST": ""}, "error: HEXSERVE_HOST must have at least 1 character"),
        (["serve"], {"HEXSERVE_API_KEYS": ",,"}, "error: api_keys is set but has no key in it"),
        (["serve", "one", "--bundle", "two"], {}, "error: SOURCE is 'one' and --bundle is 'two': give one of them"),
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
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {tmp_path / 'none'} does not exist; name ")


def test_help_lists_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"], prog_name="hexserve").output
    assert set(COMMANDS) <= set(shown.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_options(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], prog_name="hexserve")
    assert result.exit_code == 0
    assert f"hexserve {command}" in result.output


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_an_unknown_flag_is_refused(command: str | None) -> None:
    words = {None: [], "compile": ["compile", "demo", "-o", "/nowhere/bundle"]}.get(command, [command])
    result = CliRunner().invoke(app, [*words, "--no-such-option"])
    assert result.exit_code == 2
    assert "--no-such-option" in result.stderr


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert result.exit_code == 0
    assert result.stdout == f"hexserve {version('hexserve')}\n"


def test_the_reference_page_has_the_exit_codes_of_every_command() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    table = page[page.index("| command | 0 |") : page.index("130: interrupted")]
    assert [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")] == COMMANDS


def test_the_server_and_the_commands_mean_the_same_by_a_code() -> None:
    from server import __main__, run

    assert (run.BROKEN, run.UNUSABLE, __main__.INTERRUPTED) == (FAILED, UNUSABLE, INTERRUPTED)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ("demo", "")),
        (["a"], ("a", "")),
        (["a", "b", "n=c"], ("a", "b,n=c")),
        (["a", "--more-models", "b", "--more-models", "c"], ("a", "b,c")),
        (["--models-dir", "d"], ("", "")),
    ],
)
def test_sources_are_the_first_model_and_more(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: tuple[str, str]
) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr("server.commands.serve.start.start", lambda settings, **_: seen.append(settings) or 0)
    assert CliRunner().invoke(app, ["serve", *arguments, "--idle-unload", "3"]).exit_code == 0
    assert [(each.engine.bundle, each.more_models, each.idle_unload_s) for each in seen] == [(*expected, 3.0)]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["a", "--bundle", "b"], "give one of them"),
        (["a", "b", "--more-models", "c"], "give further models as SOURCE or as --more-models, not both"),
        (["a", "b,c"], "SOURCE must not hold a comma"),
        (["a", ""], "SOURCE must not be empty"),
    ],
)
def test_sources_that_contradict(arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["serve", *arguments])
    assert result.exit_code == UNUSABLE
    assert expected in result.stderr
