"""A server with adapters, from a checkpoint: each is a model; requests of all share steps and are as each is alone."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, NotFoundError

from engine.compile.graphs.layers import lora_modules
from engine.compile.sources.checkpoint import read_json
from engine.models.family import read_network
from tests.engine.adapters.peft_folders import write_adapter
from tests.live import LiveServer, serving
from tools.random_checkpoint import SHAPES, write_checkpoint

MODELS = ("tiny", "french", "org/poet:2")
PROMPT = "In a hole in the ground there lived a hobbit."


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint and two adapters of it."""
    home = tmp_path_factory.mktemp("adapters")
    write_checkpoint(home / "tiny", SHAPES["tiny"])
    modules = lora_modules(read_network(read_json(home / "tiny" / "config.json")))
    return {
        "tiny": home / "tiny",
        "french": write_adapter(home / "french", modules, (0, 1), ("q_proj", "v_proj"), rank=8),
        "org/poet:2": write_adapter(home / "poet", modules, (0, 1), rank=4, seed=5),
    }


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def server(folders: dict[str, Path], cache: Path) -> Iterator[LiveServer]:
    lora = [part for name in MODELS[1:] for part in ("--lora", f"{name}={folders[name]}")]
    with serving("--bundle", str(folders["tiny"]), *lora, "--deterministic", cache=cache) as live:
        yield live


@pytest.fixture
async def client(server: LiveServer) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as made:
        yield made


async def answers(client: AsyncOpenAI, model: str, prompts: Sequence[str], tokens: int = 24) -> list[str]:
    """The texts, asked for at once."""

    async def one(prompt: str) -> str:
        text = ""
        async for chunk in await client.completions.create(
            model=model, prompt=prompt, max_tokens=tokens, temperature=0, stream=True, extra_body={"ignore_eos": True}
        ):
            assert chunk.model == model
            text += chunk.choices[0].text
        return text

    return list(await asyncio.gather(*map(one, prompts)))


async def test_every_adapter_is_a_model_with_a_parent(client: AsyncOpenAI, server: LiveServer) -> None:
    listed = {model.id: model.model_dump() for model in (await client.models.list()).data}
    assert tuple(listed) == MODELS
    assert [listed[name]["parent"] for name in MODELS] == [None, "tiny", "tiny"]
    assert [listed[name]["root"] for name in MODELS] == list(MODELS)
    assert (await client.models.retrieve("org/poet:2")).model_dump() == listed["org/poet:2"]
    with pytest.raises(NotFoundError, match=r"This server has 'tiny', 'french', 'org/poet:2'\."):
        await answers(client, "english", [PROMPT])
    assert httpx.post(f"{server.url}/tokenize", json={"model": "french", "prompt": "a"}).status_code == 200


async def test_models_asked_at_once_say_what_each_says_alone(client: AsyncOpenAI, server: LiveServer) -> None:
    prompts = [f"{number}. {PROMPT}" for number in range(4)]
    alone = [[(await answers(client, model, [prompt]))[0] for prompt in prompts] for model in MODELS]
    assert len({tuple(texts) for texts in alone}) == 3
    steps = server.metric("hexserve:steps_total")
    together = await asyncio.gather(*(answers(client, model, prompts) for model in MODELS))
    assert together == alone
    assert server.metric("hexserve:steps_total") - steps < 12 * 24 / 4  # they shared steps
    text = httpx.get(f"{server.url}/metrics").text
    for model in MODELS:
        assert f'vllm:request_success_total{{finished_reason="length",model_name="{model}"}} 8.0' in text


async def test_no_model_finds_the_prefix_of_another(client: AsyncOpenAI) -> None:
    prompt = "The same long beginning for all of them, said twice. " * 3
    cached = []
    for model in (*MODELS, *MODELS):
        answer = await client.completions.create(model=model, prompt=prompt, max_tokens=1, temperature=0)
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[:3] == [0, 0, 0] and all(tokens and tokens >= 128 for tokens in cached[3:])


async def test_a_worker_that_dies_loses_no_adapter(client: AsyncOpenAI, server: LiveServer) -> None:
    expected = [(await answers(client, model, [PROMPT], 200))[0] for model in MODELS]
    asked = asyncio.gather(*(answers(client, model, [PROMPT], 200) for model in MODELS))
    before = server.metric("vllm:generation_tokens_total")
    while server.metric("vllm:generation_tokens_total") < before + 60:
        await asyncio.sleep(0)
    os.kill(server.worker_pid(), signal.SIGKILL)
    assert [texts[0] for texts in await asked] == expected
    assert server.metric("hexserve:worker_restarts_total") == 1


@pytest.mark.parametrize(
    ("lora", "told"),
    [
        ("a={none}", "adapter_config.json cannot be read: No such file or directory"),
        ("tiny={french}", "the adapter tiny has the name of the model"),
        ("a", "lora: 'a' is not NAME=FOLDER"),
    ],
)
def test_what_cannot_be_served_ends_the_start(folders: dict[str, Path], cache: Path, lora: str, told: str) -> None:
    named = lora.format(none=cache / "none", french=folders["french"])
    more = ["--cache-dir", str(cache), "--port", "0"]
    command = [sys.executable, "-m", "server", "serve", str(folders["tiny"]), "--lora", named, *more]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and told in " ".join(result.stderr.split())
