"""Copy-heavy work on the embedded model: what a passage repeats is guessed from the prompt. Counts, no times."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.variant import StepShape
from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.demo.location import demo_folder
from engine.request import Request, SamplingParams
from engine.text.tokenizer import Tokenizer
from engine.worker import assembly
from tools.demo_model.corpus.lists import copying

pytestmark = pytest.mark.skipif(not (demo_folder() / "model.safetensors").is_file(), reason="needs the embedded model")

# A decode of one row and steps of more on two cores, in proportion: 20 ms and 38 ms for four rows.
FAIR = {StepShape(1, 64): 2.0, StepShape(4, 64): 3.8, StepShape(64, 64): 30.0}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("demo") / "bundle"
    arguments = CompileArguments(demo_folder(), folder, quant=Quant.FP32, layout=Layout.SEGMENTS, parity_tokens=8)
    compile_bundle(arguments, SilentProgress())
    yield folder


def passages(count: int) -> list[tuple[str, str]]:
    rng = Random(7)
    return [copying(rng, 30) for _ in range(count)]


def play(config: EngineConfig, prediction: bool = False) -> tuple[dict[str, list[int]], float, str]:
    """Answers to requests to repeat a passage, tokens per step of a sequence that decodes, and what the first says."""
    folder = Path(config.bundle)
    text = load_manifest(folder).text
    tokenizer = Tokenizer((folder / text.tokenizer).read_text(encoding="utf-8"))
    assembled = assembly.assemble(config)
    loop, found = assembled.loop, {}
    try:
        for index, (question, passage) in enumerate(passages(6)):
            chat = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
            prompt = tokenizer.encode(chat, allow_special=True)
            params = SamplingParams(max_tokens=150, temperature=0.0, stop_token_ids=text.stop_ids)
            expected = tokenizer.encode(passage, allow_special=False) if prediction else ()
            loop.add(Request(str(index), prompt, params, prediction=expected), (), seed=1, now_s=0.0)
            found[str(index)] = []
        while loop.scheduler.has_work:
            for event in loop.step().events:
                found[event.id] += event.token_ids
        stats = loop.stats()
        per_step = 1 + stats.accepted_rows / (stats.decode_rows - stats.drafted_rows)
        return found, per_step, tokenizer.decode(tuple(found["0"]), skip_special=True)
    finally:
        loop.close()
        assembled.runtime.close()


def test_repeating_a_passage_takes_hardly_more_than_half_the_steps(bundle: Path) -> None:
    config = EngineConfig(bundle=str(bundle), deterministic=True, lookup_rows=0)
    plain, one, said = play(config)
    assert one == 1.0
    guessed, per_step, _ = play(replace(config, lookup_rows=8))
    assert guessed == plain
    print(f"\ntokens per step and sequence: {per_step:.2f} in padding; the first answer: {said!r}")
    assert per_step >= 1.8


def test_the_same_where_every_guess_has_its_price(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "step_times", lambda *_: FAIR)
    plain, one, _ = play(EngineConfig(bundle=str(bundle), lookup_rows=0))
    assert one == 1.0
    guessed, per_step, _ = play(EngineConfig(bundle=str(bundle), lookup_rows=8))
    print(f"\ntokens per step and sequence: {per_step:.2f} where rows have a price")
    assert guessed == plain
    assert per_step >= 1.8


def test_a_predicted_passage_takes_fewer_still(bundle: Path) -> None:
    _, looked_up, _ = play(EngineConfig(bundle=str(bundle), deterministic=True, lookup_rows=8))
    _, predicted, _ = play(EngineConfig(bundle=str(bundle), deterministic=True, lookup_rows=0), prediction=True)
    print(f"\ntokens per step and sequence: {predicted:.2f} with a prediction")
    assert predicted > max(looked_up, 2.5)
