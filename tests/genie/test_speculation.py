"""Folders of type ssd-q1: the text that the model says without speculation, in fewer steps, and libGenie's figures."""

import shutil
from pathlib import Path

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.compile.sources.checkpoint import read_json
from engine.config import EngineConfig
from engine.demo.location import demo_folder
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble
from tests.genie.generator import Generated, Recipe, generate
from tests.genie.twin import convert_to_twin
from tools.random_checkpoint import Qwen3Shape, write_checkpoint

SSD = Recipe(parts=2, shapes=(StepShape(32, 224),), ssd=True).for_emulator(256)
LUCKY = 5  # a seed whose random forecasts are right now and then


def tiny(folder: Path, seed: int = LUCKY) -> Generated:
    """A random network of one layer that speaks the demo model's tokens."""
    vocabulary = read_json(demo_folder() / "config.json")["vocab_size"]
    assert isinstance(vocabulary, int)
    shape = Qwen3Shape(1, 64, 2, 2, 32, 96, vocabulary, 512)
    write_checkpoint(folder / "tiny", shape, seed)
    shutil.copyfile(demo_folder() / "tokenizer.json", folder / "tiny" / "tokenizer.json")
    return generate(folder / "tiny", folder / "bundle", SSD)


def test_the_same_tokens_in_fewer_steps(tmp_path: Path) -> None:
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
        steps = 0
        while made.loop.scheduler.has_work:
            tokens += [token for event in made.loop.step().events for token in event.token_ids]
            steps += 1
        found.append((tokens, steps, made.loop.scheduler.counters.accepted_rows))
        made.loop.close()
        made.runtime.close()
    (tokens, steps, accepted), (plain, plain_steps, none) = found
    assert tokens == plain and len(tokens) == plain_steps == 24 and none == 0
    assert steps == 24 - accepted < 24
