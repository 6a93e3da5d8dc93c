"""The README's commands do what it says. Blocks are taken from the file; only port and paths are replaced."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.bundle.manifest import load_manifest
from engine.compile.checks import check_arguments, fixed_shapes
from engine.compile.random_checkpoint import SHAPES, write_checkpoint
from tests.command_line import compile_arguments
from tests.live import LiveServer, serving
from tests.tiny_encoder import write_encoder

ROOT = Path(__file__).parent.parent
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
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    examples = re.findall(r"^curl (?:[^'\\\n]|\\\n|'[^']*')+$", pages, re.MULTILINE)
    assert len(examples) == len(re.findall(r"^curl ", pages, re.MULTILINE)) >= 6
    write_encoder(tmp_path / "all-MiniLM-L6-v2")
    answers = {"/v1/embeddings": '"embedding"', "/v1/models": '"all-MiniLM-L6-v2"'}
    with serving("--bundle", "demo", "--more-models", str(tmp_path / "all-MiniLM-L6-v2")) as live:
        for example in examples:
            curl = example.replace(BASE, live.url).replace("my-model", "demo")
            answer = next((word for path, word in answers.items() if path in example), '"content"')
            assert answer in run(["bash", "-c", f"curl --silent --fail {curl.removeprefix('curl')}"])


def test_own_model_commands(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model", SHAPES["tiny"])
    paths = {"path/to/model": str(tmp_path / "model"), "my-bundle": str(tmp_path / "my-bundle")}
    for start, more in ((".venv/bin/hexserve compile", ("--quality", "fast")), (".venv/bin/hexserve inspect", ())):
        words = [paths.get(word, word) for word in shlex.split(command(start))]
        out = run([sys.executable, "-m", "server", *words[1:], *more])
    made = load_manifest(tmp_path / "my-bundle")
    assert ("int8" if made.is_segmented else "free_1_of_2") in out
    with serving("--bundle", paths["my-bundle"]) as own:
        assert own.metric("hexserve:passes_total") == 0
    assert command("make serve BUNDLE").split("=")[1] == "my-bundle"


def test_compile_commands_in_the_text_are_whole() -> None:
    """Those for the NPU take minutes and packages, so only their options are checked."""
    texts = (README, (ROOT / "docs" / "npu.md").read_text(encoding="utf-8"))
    found = [line for text in texts for line in re.findall(r"hexserve compile ([^`\n]*--target[^`\n]*)", text)]
    assert len(found) >= 3
    for line in found:
        arguments = compile_arguments(shlex.split(line))
        check_arguments(arguments)
        assert fixed_shapes(arguments)


def test_terminal_chat() -> None:
    words = shlex.split(command(".venv/bin/hexserve chat"))
    out = run(
        [sys.executable, "-m", "server", *words[1:], "--temperature", "0"], input="What is the capital of France?\n"
    )
    assert "Paris" in out


def test_bench_command(server: LiveServer) -> None:
    words = shlex.split(command(".venv/bin/hexserve bench"))
    words = ["1,2" if word == "1,4,8,16" else word for word in words[1:]]
    out = run([sys.executable, "-m", "server", *words, server.url, "--max-tokens", "8", "--requests-per-client", "1"])
    assert "rows" in out


def test_simulate_command() -> None:
    words = shlex.split(command(".venv/bin/hexserve simulate"))
    out = run([sys.executable, "-m", "server", *words[1:], "--requests", "1"])
    assert len(re.findall(r"(?m)^ +(?:1|4|8|16) +hexserve +[\d.]+ +[\d.]+x ", out)) == 4
    assert "Assumed:" in out


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    used = {line.split()[1] for line in commands() if line.startswith("make ")}
    assert used == {"serve", "test"} and used | {"test-all"} <= targets
    assert "`make test-all`" in README


def test_every_command_is_covered_here_or_by_ci() -> None:
    known = ("make serve", "make test", "curl", ".venv/bin/hexserve", "docker")
    assert [line for line in commands() if not line.startswith(known)] == []


def test_limits_are_stated() -> None:
    limits = README.split("## Limits")[1]
    for word in ("NPU", "Not yet", "refused", "--deterministic", "Windows ARM64"):
        assert word in limits


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
