"""Folders of type ssd-q1: the text that the model says without speculation, in fewer passes, and libGenie's figures."""

import shutil
from pathlib import Path

import httpx
import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import PassShape
from engine.compile.checkpoint import read_json
from engine.compile.random_checkpoint import Qwen3Shape, write_checkpoint
from engine.config import EngineConfig
from engine.demo.location import demo_folder
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble
from tests.genie.emulator import EMULATOR, compile_generated
from tests.genie.generator import Generated, Recipe, generate
from tests.genie.self_speculation import speculate
from tests.genie.twin import convert_to_twin
from tests.live import LiveServer, serving

SSD = Recipe(parts=2, shapes=(PassShape(32, 224),), ssd=True).for_emulator(256)
LUCKY = 5  # a seed whose random forecasts are right now and then
TEXTS = ["The capital of France is", "red, blue, green,"]


def tiny(folder: Path, seed: int = LUCKY) -> Generated:
    """A random network of one layer that speaks the demo model's tokens."""
    vocabulary = read_json(demo_folder() / "config.json")["vocab_size"]
    assert isinstance(vocabulary, int)
    shape = Qwen3Shape(1, 64, 2, 2, 32, 96, vocabulary, 512)
    write_checkpoint(folder / "tiny", shape, seed)
    shutil.copyfile(demo_folder() / "tokenizer.json", folder / "tiny" / "tokenizer.json")
    return generate(folder / "tiny", folder / "bundle", SSD)


def test_the_same_tokens_in_fewer_passes(tmp_path: Path) -> None:
    folder = convert_to_twin(tiny(tmp_path), tmp_path / "cache")
    forecast = load_manifest(folder).forecast
    assert forecast is not None
    assert (forecast.columns, forecast.branches) == (16, (3, 2))
    assert forecast.first_id == load_manifest(folder).model.vocab
    found = []
    for is_on in (True, False):
        made = assemble(EngineConfig(str(folder), forecast=is_on))
        assert made.ready.max_tokens_per_sequence == (209 if is_on else 225)
        made.loop.add(Request("a", (0, 70, 71, 300, 500), SamplingParams(24, temperature=0.0)), (), 1, 0.0)
        tokens: list[int] = []
        passes = 0
        while made.loop.scheduler.has_work:
            tokens += [token for event in made.loop.step().events for token in event.token_ids]
            passes += 1
        found.append((tokens, passes, made.loop.scheduler.counters.accepted_rows))
        made.loop.close()
        made.runtime.close()
    (tokens, passes, accepted), (plain, plain_passes, none) = found
    assert tokens == plain and len(tokens) == plain_passes == 24 and none == 0
    assert passes == 24 - accepted < 24


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
    """Both compute a prompt, then the newest token with its first forecasts, then trees: as many passes."""
    made = tiny(tmp_path)
    compile_generated(made, tmp_path / "compile")
    theirs = speculate(made.folder, TEXTS, 16, tmp_path)
    with serving("--bundle", str(made.folder), "--deterministic", cache=tmp_path / "server") as server:
        warm = server.metric("hexserve:passes_total")
        assert completions(server, 16) == theirs.answers
        passes = server.metric("hexserve:passes_total") - warm
        accepted = server.metric("hexserve:accepted_rows_total")
    assert 0 < accepted == sum(number * times for counts in theirs.accepted for number, times in enumerate(counts))
    assert passes == theirs.passes == 2 * 16 - accepted
