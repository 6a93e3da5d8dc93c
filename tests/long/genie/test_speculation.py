"""Folders of type ssd-q1: the text that the model says without speculation, in fewer steps, and libGenie's figures."""

from pathlib import Path

import httpx
import pytest

from tests.genie.emulator import EMULATOR, compile_generated
from tests.genie.self_speculation import speculate
from tests.genie.test_speculation import tiny
from tests.live import LiveServer, serving

TEXTS = ["The capital of France is", "red, blue, green,"]


def completions(server: LiveServer, count: int) -> list[str]:
    """Behind the token 0, which Genie is told to put in front."""
    body = {"model": "bundle", "max_tokens": count, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
    answers = []
    for text in TEXTS:
        ids = httpx.post(f"{server.url}/tokenize", json={"prompt": text}).json()["tokens"]
        answers.append(httpx.post(f"{server.url}/v1/completions", json={**body, "prompt": [0, *ids]}, timeout=120))
    return [answer.json()["choices"][0]["text"] for answer in answers]


@pytest.mark.skipif(not EMULATOR, reason="the HTP emulator comes with onnxruntime-qnn for x86-64 Linux")
def test_libgenies_texts_and_its_number_of_accepted_guesses(tmp_path: Path) -> None:
    """Both compute a prompt, then the newest token with its first forecasts, then trees: as many steps."""
    made = tiny(tmp_path)
    compile_generated(made, tmp_path / "compile")
    theirs = speculate(made.folder, TEXTS, 16, tmp_path)
    with serving("--bundle", str(made.folder), "--deterministic", cache=tmp_path / "server") as server:
        warm = server.metric("hexserve:steps_total")
        assert completions(server, 16) == theirs.answers
        steps = server.metric("hexserve:steps_total") - warm
        accepted = server.metric("hexserve:accepted_rows_total")
    assert 0 < accepted == sum(number * times for counts in theirs.accepted for number, times in enumerate(counts))
    assert steps == theirs.steps == 2 * 16 - accepted
