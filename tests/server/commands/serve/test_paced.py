"""A server that is paced says so wherever one may look, and refuses what it cannot keep the pace of."""

from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from server.commands.cli import app
from tests.bundles import Bundles
from tests.live import serving

NAME = "x2-elite/llama-3.2-1b"  # the smallest, with the shortest passes


def test_health_log_and_models_say_that_answers_are_noise(tmp_path: Path) -> None:
    with serving("--paced", NAME, cache=tmp_path) as server:
        health = httpx.get(f"{server.url}/health").json()
        model = httpx.get(f"{server.url}/v1/models").json()["data"][0]
        asked = {"model": model["id"], "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 12}
        answers = [httpx.post(f"{server.url}/v1/chat/completions", json=asked, timeout=60).json() for _ in range(2)]
    assert health["device"] == f"paced {NAME}: answers are noise"
    assert health["warning"] == f"Nothing is computed: every answer is noise at the pace of {NAME}."
    assert model["meta"]["device"] == health["device"] and model["meta"]["vocab"] == 128_256
    for answer in answers:
        assert answer["usage"]["completion_tokens"] == 12 and answer["choices"][0]["finish_reason"] == "length"
        assert len(answer["choices"][0]["message"]["content"]) > 24
    assert any(f"PACED {NAME}: nothing is computed, every answer is noise" in line for line in server.lines)
    assert any("hexserve.worker: PACED" in line and "WARNING" in line for line in server.lines)


@pytest.mark.parametrize("layout", ["free", "fixed"])
def test_a_bundle_of_another_kind_is_refused(bundles: Bundles, tmp_path: Path, layout: str) -> None:
    arguments = ["serve", str(bundles(layout)), "--paced", NAME, "--port", "0", "--cache-dir", str(tmp_path)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    told = "has graphs of free shapes, which no NPU runs" if layout == "free" else "is not Llama-3.2-1B"
    assert result.stderr.startswith("error: ") and told in result.stderr


def test_a_wrong_name_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["serve", "--paced", "x-elite/gpt", "--port", "0", "--cache-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "'x-elite/gpt' has no published pass times; known are x-elite/llama-3.2-1b, " in result.stderr
    assert list(tmp_path.iterdir()) == []
