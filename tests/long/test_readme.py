"""The README's commands do what it says. Blocks are taken from the file; only port and paths are replaced."""

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bundle.manifest import load_manifest
from engine.compile.plan import check_arguments, fixed_shapes
from engine.sources.packaged import catalogue
from server.commands.cli import app
from tests.command_line import compile_arguments
from tests.live import LiveServer, serving
from tests.tiny_encoder import write_encoder
from tests.tiny_whisper import write_ctranslate2, write_wav
from tools.random_checkpoint import SHAPES, write_checkpoint

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
BASE = "http://127.0.0.1:8000"


def blocks(language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(README) if name == language]


def commands() -> list[str]:
    """Every shell command of the README, continuation lines joined, comments dropped."""
    joined = "\n".join(blocks("sh")).replace("\\\n", " ")
    return [line.split("  #")[0].strip() for line in joined.splitlines() if line.strip()]


def command(start: str) -> str:
    found = [line for line in commands() if line.startswith(start)]
    assert len(found) == 1, f"{start!r} is not one command of the README: {found}"
    return found[0]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("--bundle", "demo") as live:
        yield live


def run(arguments: list[str], **kwargs: object) -> str:
    done = subprocess.run(
        arguments,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
        **kwargs,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_curl_and_sdk_examples(server: LiveServer) -> None:
    curl = command("curl").replace(BASE, server.url)
    assert "Paris" in run(["bash", "-c", f"curl --silent --fail {curl.removeprefix('curl')}"])
    (example,) = blocks("python")
    assert "Paris" in run([sys.executable, "-c", example.replace(BASE, server.url)])


def test_curl_examples_of_the_pages(tmp_path: Path) -> None:
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").rglob("*.md")))
    examples = re.findall(r"^curl (?:[^'\\\n]|\\\n|'[^']*')+$", pages, re.MULTILINE)
    assert len(examples) == len(re.findall(r"^curl ", pages, re.MULTILINE)) >= 6
    more = (tmp_path / "all-MiniLM-L6-v2", tmp_path / "whisper-base")
    write_encoder(more[0])
    write_ctranslate2(more[1])
    write_wav(tmp_path / "talk.mp3")
    answers = {"/v1/embeddings": '"embedding"', "/v1/models": '"all-MiniLM-L6-v2"', "/v1/audio": '"text"'}
    with serving("--bundle", "demo", "--more-models", ",".join(map(str, more)), cache=tmp_path / "cache") as live:
        for example in examples:
            curl = example.replace(BASE, live.url).replace("my-model", "demo").replace("@", f"@{tmp_path}/")
            answer = next((word for path, word in answers.items() if path in example), '"content"')
            assert answer in run(["bash", "-c", f"curl --silent --fail {curl.removeprefix('curl')}"])


def test_own_model_commands(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", SHAPES["tiny"])
    paths = {"path/to/model": str(tmp_path / "model"), "my-bundle": str(tmp_path / "my-bundle")}
    words = [paths.get(word, word) for word in shlex.split(command(".venv/bin/hexserve compile"))]
    run([sys.executable, "-m", "server", *words[1:], "--quality", "fast"])
    assert load_manifest(tmp_path / "my-bundle").is_segmented
    words = [paths.get(word, word) for word in shlex.split(command(".venv/bin/hexserve serve my"))]
    with serving(*words[2:]) as own:
        assert own.metric("hexserve:steps_total") == 0


@pytest.mark.parametrize("page", ["README.md", "docs/how-to/npu.md", "docs/quickstart/windows.md"])
def test_compile_commands_for_the_npu_are_whole(page: str) -> None:
    """They take minutes and packages, so only their options are checked."""
    found = re.findall(r"hexserve compile ([^`\n]*--target[^`\n]*)", (ROOT / page).read_text(encoding="utf-8"))
    assert found
    for line in found:
        arguments = compile_arguments(shlex.split(line))
        check_arguments(arguments)
        assert fixed_shapes(arguments)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart/linux.md", "docs/quickstart/windows.md"])
def test_extras_commands_and_names_of_the_first_pages_exist(page: str) -> None:
    """What they start is tested elsewhere: `run smollm2` and the served one by tests/real/test_run.py."""
    text = (ROOT / page).read_text(encoding="utf-8")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert {name for group in re.findall(r"install ['\"]\.\[([\w,]+)\]", text) for name in group.split(",")} <= set(
        extras
    )
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    started = re.findall(r"^ *\.venv[/\\]\S*hexserve ([\w-]+)(?: (smollm2|demo|\S+))?", text, re.MULTILINE)
    assert started and {name for name, _ in started} <= known
    assert {source for name, source in started if name == "run"} <= set(catalogue())


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {line.split()[1] for line in commands() if line.startswith("make ")}
    assert used == {"serve", "test"} and used | {"test-all"} <= targets
    assert "`make test-all`" in README


def test_every_command_is_covered_here_or_by_ci() -> None:
    known = ("make serve", "make test", "curl", ".venv/bin/hexserve serve Qwen/")
    own = (".venv/bin/hexserve compile", ".venv/bin/hexserve serve")
    assert [line for line in commands() if not line.startswith(known + own)] == []


def test_limits_are_stated() -> None:
    limits = README.split("## Limits")[1]
    for word in ("NPU", "Images", "refused", "--deterministic", "Windows ARM64"):
        assert word in limits
