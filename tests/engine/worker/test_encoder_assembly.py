"""The engine of an encoder's bundle as the settings ask for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import Pooling, Request, SamplingParams
from engine.worker.assembly import Assembled, assemble
from tests.tiny_encoder import VOCAB, write_encoder

TEXTS = [tuple(map(int, np.random.default_rng(seed).integers(5, VOCAB, 3 + 5 * seed))) for seed in range(6)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder / "tiny")
    arguments = CompileArguments(folder / "tiny", folder / "bundle", quant=Quant.FP32, rows=(32, 96))
    compile_bundle(arguments, SilentProgress())
    return folder / "bundle"


@pytest.fixture
def opened(bundle: Path, request: pytest.FixtureRequest) -> Iterator[Assembled]:
    made = assemble(EngineConfig(bundle=str(bundle), deterministic=request.param))
    yield made
    made.loop.close()
    made.runtime.close()


def vectors(made: Assembled, texts: list[tuple[int, ...]]) -> list[bytes]:
    for number, text in enumerate(texts):
        made.loop.add(Request(str(number), text, SamplingParams(max_tokens=0), pooling=Pooling()), (), 0, 0.0)
    found = {}
    while made.loop.has_work:
        found.update({event.id: event.vector for event in made.loop.step().events})
    return [found[str(number)] for number in range(len(texts))]


@pytest.mark.parametrize("opened", [False], indirect=True)
def test_it_says_what_it_is(opened: Assembled) -> None:
    ready = opened.ready
    assert (ready.device, ready.variants) == ("CPU", ("32 rows", "96 rows"))
    assert ready.max_tokens_per_sequence == ready.max_input_tokens == 96
    vectors(opened, TEXTS)
    assert opened.loop.stats().steps == 1


@pytest.mark.parametrize("opened", [True], indirect=True)
def test_deterministic_vectors_depend_on_no_neighbour(opened: Assembled) -> None:
    """Not in one bit."""
    together = vectors(opened, TEXTS)
    assert vectors(opened, TEXTS[::-1]) == together[::-1]
    assert [vectors(opened, [text])[0] for text in TEXTS] == together


@pytest.mark.parametrize(
    "setting",
    [{"draft": "x"}, {"lora": ("a=x",)}, {"window": 64}, {"kv_file": "x"}],
)
def test_settings_of_models_that_generate_are_refused_by_name(setting: dict[str, Any], bundle: Path) -> None:
    with pytest.raises(BundleError, match=f"{next(iter(setting))} is for models that generate"):
        assemble(EngineConfig(bundle=str(bundle), **setting))
