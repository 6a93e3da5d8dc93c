"""Gemma 3 behind the scheduler: prefixes that would end in an image, long texts between images, steps of one shape."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.client.engine import Engine
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.errors import BundleError
from tests.engine.vision.judges import data_url, greedy
from tests.long.engine.vision.test_against_transformers import PICTURES, TOKENS, answered, prompted
from tests.vision_models import write_gemma3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of transformers, and the bundle that is made of it."""
    folder = tmp_path_factory.mktemp("gemma3")
    model = write_gemma3(folder / "source")
    compile_bundle(CompileArguments(folder / "source", folder / "bundle", quant=Quant.FP32), SilentProgress())
    return model, folder / "bundle"


@pytest_asyncio.fixture(params=[False, True], ids=["", "deterministic"])
async def engine(made: tuple[Any, Path], request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    engine = Engine(EngineConfig(str(made[1]), threads=1, deterministic=request.param))
    await engine.start()
    yield engine
    await engine.close()


def asked(*parts: str | int) -> list[dict[str, Any]]:
    """One message of texts and pictures."""
    shown = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "url": data_url(PICTURES[part])}
        for part in parts
    ]
    return [{"role": "user", "content": shown}]


async def test_answers_behind_prefixes_that_end_anywhere(made: tuple[Any, Path], engine: Engine) -> None:
    """Wherever the borders of blocks lie, no answer goes on from the middle of an image."""
    begins: set[bool] = set()
    for count in range(0, 16, 3):
        for number, end in enumerate(("Say.", "And then?")):
            prompt = await prompted(engine, asked("x" * count, 0, end))
            tokens, cached = await answered(engine, prompt, f"{count} {number}")
            assert tokens == greedy(made[0], list(prompt.ids), PICTURES[:1], TOKENS)
            (image,) = prompt.images
            assert not image.first < cached < image.first + image.tokens
            begins.add(cached >= image.first + image.tokens)
    assert begins == {False, True}


async def test_long_texts_and_several_images_at_once(made: tuple[Any, Path], engine: Engine) -> None:
    chats = [
        (asked("a" * 150, 1, "b" * 130, 0, "c" * 20), (1, 0)),
        (asked(2, "d" * 190), (2,)),
        (asked(0, 1, 2, 0, "e"), (0, 1, 2, 0)),
    ]
    prompts = [(await prompted(engine, messages), shown) for messages, shown in chats]
    found = await asyncio.gather(*(answered(engine, prompt, str(index)) for index, (prompt, _) in enumerate(prompts)))
    for (prompt, shown), (tokens, _) in zip(prompts, found, strict=True):
        assert tokens == greedy(made[0], list(prompt.ids), [PICTURES[index] for index in shown], TOKENS)


async def test_a_step_that_is_too_small_for_an_image_is_told_at_the_start(made: tuple[Any, Path]) -> None:
    engine = Engine(EngineConfig(str(made[1]), threads=1, max_rows=15))
    with pytest.raises(BundleError, match="max_rows is 15, an image of this model takes 16 rows of one step"):
        await engine.start()
    await engine.close()
