"""The emulator and the CPU serve one model together: a stream that goes to and fro has the answer of either."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.client import placement
from engine.client.devices import DeviceGroup
from engine.client.engine import Engine, TokenStream
from engine.config import EngineConfig
from engine.request import Request, SamplingParams, ids_of
from engine.sources.resolve import resolve_bundle
from server.settings import costs_folder

QUESTION = "What is the capital of France? Answer in a sentence, and take your time, for there is no hurry at all."
GUARD_S = 240.0


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return resolve_bundle("demo", tmp_path_factory.mktemp("cache"))


async def told(stream: TokenStream) -> tuple[str, tuple[str, ...]]:
    deltas = [delta async for delta in stream]
    timings = deltas[-1].timings
    assert timings is not None
    return "".join(delta.text for delta in deltas), timings.devices


TRIES = 8


async def answers(engine: Engine) -> list[tuple[str, tuple[str, ...]]]:
    """Text and devices of each answer."""
    async with asyncio.timeout(GUARD_S):
        await engine.start()
        try:
            prompt = ids_of(await engine.chat_prompt([{"role": "user", "content": QUESTION}]))
            asked = [Request(f"r{number}", prompt, SamplingParams(24, temperature=0.0)) for number in range(3)]
            return await asyncio.gather(*(told(engine.submit(request)) for request in asked))
        finally:
            await engine.close()


@pytest.mark.parametrize("layout", ["fp16", "w8a16"])
async def test_a_stream_that_goes_to_and_fro(
    layout: str, on_cpu: Path, npu_bundle: Callable[[str], Path], npu_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "reader", lambda prompt, loads: prompt % 2)
    monkeypatch.setattr(placement, "writer", lambda here, *rest: 1 - here)
    npu = await asyncio.to_thread(npu_bundle, layout)
    costs = str(costs_folder(npu_cache))
    alone = await answers(Engine(EngineConfig(str(on_cpu), cost_cache=costs)))
    for _ in range(TRIES):
        both = Engine(EngineConfig(str(npu), devices=str(on_cpu), cost_cache=costs))
        found = await answers(both)
        assert [text for text, _ in found] == [text for text, _ in alone]
        if any(sorted(places) == ["CPU", "HTP emulator"] for _, places in found):
            break  # a CPU may be done with a stream before the emulator has taken it
    else:
        pytest.fail(f"no stream went from one device to the other in {TRIES} tries")
    assert {places for _, places in alone} == {("CPU",)}
    group = both._supervisor
    assert isinstance(group, DeviceGroup) and group.moves >= 1
    assert both.info.device == "HTP emulator and CPU"
