"""Bench, chat and smoke against the real server with the embedded model."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.commands.bench.session import CONTINUOUS_USAGE
from server.commands.own_server import running_server

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running_server("demo") as running:
        yield running


def run(*command: str, typed: str = "", **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", *command],
        input=typed, capture_output=True, encoding="utf-8", timeout=100, check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip


def answers_per_step(level: "dict[str, dict[str, float]]") -> float:
    """Answers that a step continues: a lone client's guesses are rows too, but of one answer."""
    counters = level["counters"]
    return (counters["decode_rows"] - counters["drafted_rows"]) / counters["steps"]


def test_bench_sees_inside_the_engine(address: str, tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    load = ["--clients", "1,8", "--requests-per-client", "2", "--max-tokens", "24", "--prompt-tokens", "40"]
    done = run("server", "bench", address, *load, "--shared-prefix", "100", "--json", str(figures))
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(figures.read_text(encoding="utf-8"))
    one, eight = document["levels"]
    assert [level["outcomes"] for level in (one, eight)] == [
        {"ok": count, "failed": 0, "429": 0, "503": 0} for count in (2, 16)
    ]
    assert document["servers"][0]["sent"] == {**CONTINUOUS_USAGE, "ignore_eos": True}
    assert (one["output_tokens"], eight["output_tokens"]) == (2 * 24, 16 * 24)
    assert answers_per_step(one) < answers_per_step(eight)
    assert 0 < one["outside_graph"] < 1
    assert abs(one["prompt_tokens"] - 40) < 20
    assert document["shared_prefix"][0]["cached_tokens"] >= 64
    assert eight["counters"]["prefix_hits"] == 0, "made-up prompts must not warm each other"


def test_chat_answers_a_pipe(address: str) -> None:
    done = run("server", "chat", "--url", address, "--temperature", "0", typed="What is the capital of France?\n")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "first token" in done.stderr


@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="needs bash and curl")
def test_smoke(address: str) -> None:
    done = subprocess.run(["bash", str(ROOT / "deploy/smoke.sh"), address], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
