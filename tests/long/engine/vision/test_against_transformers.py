"""Chats with images against transformers: the same rows, the same tokens, whatever shares the step or the cache."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine.bundle.manifest import load_manifest
from engine.bundle.vision import VisionSpec
from engine.client.engine import Engine
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import BLOCK_SIZE, EngineConfig
from engine.errors import InvalidRequest
from engine.request import ImagePrompt, Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch
from engine.worker.assembly import assemble
from tests.engine.client.client_stage import KILL
from tests.engine.vision.judges import SHAPES, data_url, greedy, rows_differ
from tests.genie.seeing import prompt_of
from tests.vision_models import QWEN_FORMS, write_gemma3, write_idefics3, write_internvl, write_qwen_vl

TOKENS = 10
PICTURES = SHAPES[:3]


@pytest.fixture(scope="module", params=["SmolVLM", "Idefics3", *QWEN_FORMS, "qwen2", "qwen3", "Gemma3"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A model of transformers, and the bundle that is made of it."""
    folder = tmp_path_factory.mktemp("vision")
    of_tiles = {"qwen2": write_internvl, "qwen3": write_internvl, "Gemma3": write_gemma3}
    write = {**of_tiles, **dict.fromkeys(QWEN_FORMS, write_qwen_vl)}
    model = write.get(request.param, write_idefics3)(folder / "source", request.param)
    compile_bundle(CompileArguments(folder / "source", folder / "bundle", quant=Quant.FP32), SilentProgress())
    return model, folder / "bundle"


@pytest_asyncio.fixture
async def engine(made: tuple[Any, Path]) -> AsyncIterator[Engine]:
    engine = Engine(EngineConfig(str(made[1]), threads=1))
    await engine.start()
    yield engine
    await engine.close()


def chat(*shown: int, text: str = "What <image> is this?") -> list[dict[str, Any]]:
    """A conversation that comes to so many pictures."""
    parts = [{"type": "image", "url": data_url(PICTURES[index])} for index in shown]
    said = {"type": "text", "text": text}
    return [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "hi"},
        {"role": "user", "content": [said, *parts, {"type": "text", "text": "Say."}]},
    ]


async def answered(engine: Engine, prompt: ImagePrompt, name: str) -> tuple[list[int], int]:
    """Greedy tokens, and how many of the prompt were cached."""
    tokens: list[int] = []
    request = Request(name, prompt.ids, SamplingParams(TOKENS, temperature=0.0), images=prompt.images)
    cached = 0
    async for delta in engine.submit(request):
        tokens += delta.token_ids
        cached = delta.timings.cached_tokens if delta.timings is not None else cached
    return tokens, cached


async def prompted(engine: Engine, messages: list[dict[str, Any]]) -> ImagePrompt:
    prompt = await engine.chat_prompt(messages)
    assert isinstance(prompt, ImagePrompt)
    return prompt


def test_rows_of_a_tile(made: tuple[Any, Path]) -> None:
    model, folder = made
    manifest = load_manifest(folder)
    assert manifest.vision is not None
    assert rows_differ(model, folder, manifest.vision) < 1e-4


SHOWN = [(0,), (1,), (0, 1), (2, 0)]


async def test_greedy_tokens(made: tuple[Any, Path], engine: Engine) -> None:
    """All at once, so that steps have rows of several images and of a text without any."""
    prompts = [await prompted(engine, chat(*shown)) for shown in SHOWN]
    text = await engine.chat_prompt(chat())
    assert isinstance(text, tuple)
    asked = [*prompts, ImagePrompt(text, ())]
    found = await asyncio.gather(*(answered(engine, prompt, str(index)) for index, prompt in enumerate(asked)))
    for prompt, shown, (tokens, _) in zip(asked, [*SHOWN, ()], found, strict=True):
        assert tokens == greedy(made[0], list(prompt.ids), [PICTURES[index] for index in shown], TOKENS)


def test_images_of_several_requests_share_a_step(made: tuple[Any, Path]) -> None:
    """Rows of at least two requests' images lie in one step, beside a row that decodes; the tokens are those of each
    alone."""
    model, folder = made
    spec = load_manifest(folder).vision
    assert spec is not None
    pieces: dict[str, list[Any]] = {"a": [5, PICTURES[1], 17], "b": [7, PICTURES[0], 30], "text": [*range(10, 40)]}
    requests = {name: asked(spec, name, each) for name, each in pieces.items()}
    world = Watched(folder)
    alone = {name: world.run([request])[name] for name, request in requests.items()}
    world.shared.clear()
    assert world.run([requests["text"], requests["a"], requests["b"]]) == alone
    world.close()
    assert {"a", "b"} in [seeing for seeing, _ in world.shared]
    assert any(seeing and "text" in others for seeing, others in world.shared)
    for name, each in pieces.items():
        images = [piece for piece in each if not isinstance(piece, int)]
        assert alone[name] == greedy(model, list(requests[name].prompt_ids), images, TOKENS)


def asked(spec: VisionSpec, name: str, pieces: list[Any], count: int = TOKENS) -> Request:
    """Of tokens and pictures in order."""
    ids, images = prompt_of(spec, pieces)
    return Request(name, tuple(ids), SamplingParams(count, temperature=0.0), images=images)


class Watched:
    """The worker's engine, which forgets no rows of images and keeps no prefix.

    shared: of each step, who had rows of images in it and who had others alone. preemptions: for want of room."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.shared: list[tuple[set[str], set[str]]] = []
        self.preemptions = 0
        self._made = assemble(EngineConfig(str(folder), threads=1, prefix_cache=False, **settings))
        self._run, self._made.runtime.run = self._made.runtime.run, self._noted  # type: ignore[method-assign]

    def _noted(self, batch: PackedBatch) -> Logits:
        rows = batch.embedded.rows if batch.embedded is not None else ()
        seeing = {part.owner for part in batch.segments if any(part.start <= row < part.end for row in rows)}
        self.shared.append((seeing, {part.owner for part in batch.segments} - seeing))
        return self._run(batch)

    def run(self, requests: list[Request]) -> dict[str, list[int]]:
        """Greedy tokens of requests that come at once."""
        found: dict[str, list[int]] = {request.id: [] for request in requests}
        for request in requests:
            self._made.loop.add(request, (), 1, 0.0)
        while self._made.loop.has_work:
            report = self._made.loop.step()
            assert not report.failures
            for event in report.events:
                found[event.id] += event.token_ids
                self.preemptions += event.timings.preemptions if event.timings is not None else 0
        return found

    def close(self) -> None:
        self._made.loop.close()
        self._made.runtime.close()


async def test_the_same_image_is_a_prefix_and_another_is_none(engine: Engine) -> None:
    prompt = await prompted(engine, chat(0))
    first, cached = await answered(engine, prompt, "a")
    assert cached == 0
    again, cached = await answered(engine, prompt, "b")
    assert again == first
    assert cached > prompt.images[-1].first
    other = await prompted(engine, chat(2))
    assert (await answered(engine, other, "c"))[1] <= other.images[0].first


async def test_a_later_turn_shows_another(made: tuple[Any, Path], engine: Engine) -> None:
    more = [*chat(0), {"role": "assistant", "content": "A b."}, chat(1)[-1]]
    prompt = await prompted(engine, more)
    tokens, _ = await answered(engine, prompt, "a")
    assert tokens == greedy(made[0], list(prompt.ids), PICTURES[:2], TOKENS)


async def test_a_text_alone_and_a_worker_that_died(made: tuple[Any, Path], engine: Engine) -> None:
    ids = await engine.chat_prompt([{"role": "user", "content": "hello"}])
    assert isinstance(ids, tuple)
    prompt = await prompted(engine, chat(1))
    expected = greedy(made[0], list(prompt.ids), PICTURES[1:2], TOKENS)
    pid = engine.worker_pid()
    assert pid is not None
    stream = engine.submit(Request("a", prompt.ids, SamplingParams(TOKENS, temperature=0.0), images=prompt.images))
    os.kill(pid, KILL)
    tokens = [token async for delta in stream for token in delta.token_ids]
    assert tokens == expected


async def test_a_worker_that_dies_behind_the_first_token(made: tuple[Any, Path], engine: Engine) -> None:
    """The stream goes on in the next worker, which encodes the images again."""
    prompt = await prompted(engine, chat(0, 1))
    request = Request("a", prompt.ids, SamplingParams(MANY, temperature=0.0), images=prompt.images)
    pid, tokens = engine.worker_pid(), list[int]()
    assert pid is not None
    async for delta in engine.submit(request):
        if not tokens:
            os.kill(pid, KILL)
        tokens += delta.token_ids
    assert engine.restarts == 1
    assert tokens == greedy(made[0], list(prompt.ids), PICTURES[:2], MANY)


MANY = 240  # not computed yet when the worker is killed
LONGER = 80  # more blocks than there are left


def test_who_gives_its_room_to_another_sees_its_image_again(made: tuple[Any, Path]) -> None:
    """Room for both prompts and three blocks: answers that grow take it from each other."""
    model, folder = made
    spec = load_manifest(folder).vision
    assert spec is not None
    requests = [asked(spec, str(index), [5, PICTURES[index], 17], LONGER) for index in (0, 1)]
    columns = BLOCK_SIZE * (sum(-(-len(request.prompt_ids) // BLOCK_SIZE) for request in requests) + 3)
    world = Watched(folder, kv_slots=columns, kv_offload_mb=0, reserve_tokens=0)
    for request in requests:  # so that their images are known, and they begin together
        world.run([replace(request, params=SamplingParams(1))])
    found = world.run(requests)
    world.close()
    for index, request in enumerate(requests):
        assert found[request.id] == greedy(model, list(request.prompt_ids), [PICTURES[index]], LONGER)
    assert world.preemptions > 0


UNREADABLE = {
    "https://example.org/a.png": "must be a data URL",
    "file:///etc/passwd": "must be a data URL",
    "data:image/png;base64,!!": "is not base64",
    "data:image/png;base64,AAAA": "no image",
}


async def test_what_cannot_be_read_names_its_part(engine: Engine) -> None:
    for url, sentence in UNREADABLE.items():
        content = [{"type": "text", "text": "x"}, {"type": "image", "url": url}]
        with pytest.raises(InvalidRequest, match=sentence) as caught:
            await engine.chat_prompt([{"role": "user", "content": content}])
        assert caught.value.param == "messages[0].content[1].image_url"
    with pytest.raises(InvalidRequest, match="truncated"):
        await engine.chat_prompt(chat(0), keep=10)
