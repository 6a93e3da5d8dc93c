"""The wheel: what is in it; installed by pip and by uv outside the tree, it serves; what an extra is for, it says."""

import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.environments import program_from_pypi
from tests.deploy.built import build
from tests.live import LiveServer, watching
from tools.packages import install

UV = "uv==0.13.9"
ASK = '{"model": "demo", "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0}'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


def elsewhere(folder: Path) -> dict[str, str]:
    """An environment in which nothing leads to the tree or to this Python's packages."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HEXSERVE_", "VIRTUAL_ENV"))
    }
    return {**kept, "HEXSERVE_CACHE_DIR": str(folder / "cache"), "HOME": str(folder)}


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder outside the tree."""
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=elsewhere(folder))


def script(environment: Path, name: str) -> str:
    return str(environment / ("Scripts" if sys.platform == "win32" else "bin") / name)


def install_with_pip(requirement: str, folder: Path) -> str:
    """The path of `hexserve` in a fresh virtual environment."""
    venv.create(folder / "venv", symlinks=sys.platform != "win32")
    python = script(folder / "venv", "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
    done = subprocess.run([*pip, "--no-compile", requirement], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return script(folder / "venv", "hexserve")


def install_with_uv(requirement: str, folder: Path) -> str:
    """The path of `hexserve` that `uv tool install` makes."""
    places = {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
    command = [str(program_from_pypi("uv", UV)), "tool", "install", "--python", sys.executable, "--quiet", requirement]
    environment = {**os.environ, **places, "UV_CACHE_DIR": str(folder / "uv")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    assert done.returncode == 0, done.stderr
    return str(folder / "bin" / Path(script(folder, "hexserve")).name)


@pytest.mark.parametrize("installed", [install_with_pip, install_with_uv])
def test_installed_outside_the_tree_it_serves(
    installed: Callable[[str, Path], str], wheel: Path, tmp_path: Path
) -> None:
    program = installed(f"hexserve[compile] @ {wheel.as_uri()}", tmp_path)
    assert run([program, "--version"], tmp_path).stdout.startswith("hexserve ")
    for server in served(program, tmp_path):
        url = f"{server.url}/v1/chat/completions"
        asked = run(["curl", "--silent", "--fail", url, "-H", "Content-Type: application/json", "-d", ASK], tmp_path)
        assert "Paris" in asked.stdout, asked.stderr


def served(program: str, folder: Path) -> Iterator[LiveServer]:
    command = [program, "serve", "demo", "--port", "0"]
    with watching(command, elsewhere(folder), folder) as server:
        yield server


def test_without_extras_each_command_names_the_one_it_needs(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=sys.platform != "win32")
    done = install(Path(script(tmp_path / "venv", "python")), wheel.as_uri())
    assert done.returncode == 0, done.stderr
    program = script(tmp_path / "venv", "hexserve")
    for words, extra, code in (
        (("serve", "demo", "--port", "0"), "compile", 2),
        (("compile", "demo", "-o", "out"), "compile", 2),
        (("serve", "--otel", "http://127.0.0.1:4318"), "otel", 2),
        (("pull", "hub:llama"), "hub", 1),
    ):
        done = run([program, *words], tmp_path)
        assert (done.returncode, done.stdout) == (code, "")
        assert done.stderr.count("\n") == 1 and done.stderr.endswith(f'-m pip install "hexserve[{extra}]"\n'), words
    doctor = run([program, "doctor"], tmp_path)
    assert doctor.returncode == 0 and '-m pip install "hexserve[qnn]"' in doctor.stdout
