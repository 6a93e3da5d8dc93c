"""Two workers of one model, and sequences that go from one to the other: clients see the tokens of either alone."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from engine.client import placement
from engine.client.devices import DeviceGroup
from engine.client.engine import Engine, TokenStream
from engine.client.info import EngineState
from engine.client.placement import MOVE_TOKEN_MS
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import Delta, FinishReason, Request, SamplingParams
from tests.bundles import Bundles
from tests.engine.client.client_stage import KILL
from tests.long.engine.worker.test_draft import other_tokens, write_tokenizer

TOKENS, ROUNDS = 40, 8
GUARD_S = 180.0  # two workers and their checks take their time on a busy machine


def asked(number: int, **more: object) -> Request:
    prompt = tuple(3 + (7 * index + number) % 250 for index in range(20 + 9 * number % 60))
    return Request(f"r{number}", prompt, SamplingParams(TOKENS, temperature=0.8, seed=number), **more)  # type: ignore[arg-type]


@asynccontextmanager
async def opened(bundles: Bundles, *layouts: str) -> AsyncIterator[Engine]:
    first, *others = [str(bundles(layout)) for layout in layouts]
    engine = Engine(EngineConfig(first, devices="".join(others)))
    async with asyncio.timeout(GUARD_S):
        await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


async def read(stream: TokenStream) -> list[Delta]:
    async with asyncio.timeout(GUARD_S):
        return [delta async for delta in stream]


async def text_of(stream: TokenStream) -> str:
    return "".join(delta.text for delta in await read(stream))


def group_of(engine: Engine) -> DeviceGroup:
    group = engine._supervisor
    assert isinstance(group, DeviceGroup)
    return group


async def idle(engine: Engine) -> None:
    async with asyncio.timeout(GUARD_S):
        while engine.stats.running or engine.stats.waiting or engine.stats.kv_slots_used:
            await asyncio.sleep(0)


async def texts(engine: Engine, count: int) -> list[str]:
    return await asyncio.gather(*(text_of(engine.submit(asked(number))) for number in range(count)))


@pytest.fixture(autouse=True)
def compiled(bundles: Bundles) -> None:
    """The compiler has an event loop of its own."""
    for layout in ("free", "segments", "segments int8 caches", "fused"):
        bundles(layout)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stream goes to the other device whenever it may."""
    monkeypatch.setattr(placement, "reader", lambda prompt, loads: prompt % 2)
    monkeypatch.setattr(placement, "writer", lambda here, *rest: 1 - here)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("layouts", [("free", "segments"), ("segments int8 caches", "segments int8 caches")])
async def test_tokens_are_those_of_one_device(layouts: tuple[str, str], bundles: Bundles) -> None:
    async with opened(bundles, layouts[1]) as engine:
        alone = await texts(engine, 6)
    async with opened(bundles, *layouts) as engine:
        stats = engine.stats  # the check at the start is no client's
        assert (stats.prompt_tokens, stats.generated_tokens, stats.steps, stats.prefix_queries) == (0, 0, 0, 0)
        group, rounds = group_of(engine), 0
        while not group.moves and rounds < ROUNDS:  # who has ended before it is let go of does not move
            assert await texts(engine, 6) == alone
            rounds += 1
        await idle(engine)
        assert engine.stats.hand_overs == group.moves > 0
        assert list(group._folder.iterdir()) == [] and not group._placed.requests
        assert engine.info.device == "CPU and CPU"
        assert {"1 CPU: graph", "2 CPU: graph"} <= engine.stats.stages.keys()
        assert 0 < group._token_ms != MOVE_TOKEN_MS
        prompts = rounds * sum(len(asked(number).prompt_ids) for number in range(6))
        assert engine.stats.generated_tokens >= 6 * TOKENS * rounds and engine.stats.prefix_queries == prompts
        assert engine.stats.prefill_rows < 2 * prompts  # who moved was not computed again


@pytest.mark.usefixtures("restless")
async def test_what_a_client_is_told_is_of_the_whole_request(bundles: Bundles) -> None:
    async with opened(bundles, "free", "segments") as engine:
        deltas = await read(engine.submit(asked(1)))
        last = deltas[-1]
        assert last.finish is FinishReason.LENGTH and last.timings is not None
        assert last.timings.generated_tokens == TOKENS and last.timings.cached_tokens == 0
        assert last.timings.prompt_tokens == len(asked(1).prompt_ids)
        again = (await read(engine.submit(asked(1))))[-1]
        assert again.timings is not None and again.timings.cached_tokens > 0


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("lost", [0, 1])
async def test_a_lost_device_loses_no_stream(lost: int, bundles: Bundles) -> None:
    async with opened(bundles, "segments") as engine:
        alone = await texts(engine, 32)
    async with opened(bundles, "free", "segments") as engine:
        streams = [engine.submit(asked(number)) for number in range(32)]
        reading = [asyncio.create_task(text_of(stream)) for stream in streams]
        group = group_of(engine)
        while group.moves < 8 and not all(task.done() for task in reading):
            await asyncio.sleep(0)
        pid = group._devices[lost].supervisor.pid
        assert pid is not None
        os.kill(pid, KILL)
        assert await asyncio.gather(*reading) == alone
        assert engine.restarts <= 1


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("lost", [None, 0, 1])
async def test_streams_end_well_while_the_server_closes(lost: int | None, bundles: Bundles) -> None:
    """With hand-overs under way, and where a device is lost meanwhile."""
    async with opened(bundles, "segments") as engine:
        alone = await texts(engine, 16)
    async with opened(bundles, "free", "segments") as engine:
        reading = [asyncio.create_task(text_of(engine.submit(asked(number)))) for number in range(16)]
        group = group_of(engine)
        while group.moves < 4 and not all(task.done() for task in reading):
            await asyncio.sleep(0)
        pid = None if lost is None else group._devices[lost].supervisor.pid
        closing = asyncio.create_task(engine.close(drain_s=GUARD_S))
        await asyncio.sleep(0)
        assert engine.state is EngineState.DRAINING
        if pid is not None:
            os.kill(pid, KILL)
        assert await asyncio.gather(*reading) == alone
        await closing
        assert not group._placed.requests and not group._folder.exists()


async def test_streams_leave_a_device_that_may_have_none_any_more(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As to save power, when the other device serves again."""
    may_have = [0]
    monkeypatch.setattr(placement, "candidates", lambda *_: may_have)
    async with opened(bundles, "free", "segments") as engine:
        rounds = 0
        while not group_of(engine).moves and rounds < ROUNDS:  # who has ended before it is let go of does not move
            may_have[0] = 0
            streams = [engine.submit(replace(asked(number), params=SamplingParams(200))) for number in range(4)]
            assert [placed.at for placed in group_of(engine)._placed.requests.values()] == [0] * 4
            may_have[0] = 1
            await asyncio.gather(*(read(stream) for stream in streams))
            rounds += 1
        assert 0 < group_of(engine).moves <= 4  # once each at most, and not to and fro


async def test_aborted_streams_leave_nothing(bundles: Bundles, restless: None) -> None:
    async with opened(bundles, "free", "segments") as engine:
        streams = [engine.submit(asked(number)) for number in range(8)]
        for stream in streams:
            async for _ in stream:
                break
            stream.abort()
        await texts(engine, 2)
        group = group_of(engine)
        assert not group._placed.requests


async def test_bundles_that_do_not_fit_are_refused(bundles: Bundles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check at the start notices other keys, whatever the manifests say."""
    from engine.client import placement

    monkeypatch.setattr(placement, "top_kl", lambda own, other: 3.0)
    with pytest.raises(BundleError, match="do not fit the bundle on CPU"):
        async with opened(bundles, "free", "segments"):
            pass


async def test_devices_that_cannot_be_compared_are_told(bundles: Bundles, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(EngineConfig(str(bundles("free")), devices=str(bundles("segments")), deterministic=True))
    try:
        async with asyncio.timeout(GUARD_S):
            await engine.start()
        await texts(engine, 2)
        assert group_of(engine).moves == 0 and "streams stay on CPU: step times are not measured" in caplog.text
    finally:
        await engine.close()


async def test_other_tokens_are_refused(bundles: Bundles, tmp_path: Path) -> None:
    other = Path(shutil.copytree(bundles("segments"), tmp_path / "other"))
    content = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    other_tokens(content)
    write_tokenizer(other, json.dumps(content))
    engine = Engine(EngineConfig(str(bundles("free")), devices=str(other)))
    with pytest.raises(BundleError, match=r"devices: \S+ has other tokens than \S+: 0 is"):
        await engine.start()


async def test_a_device_that_is_lost_for_good_is_told_no_more(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(bundles, "free", "segments") as engine:
        assert engine.device == "CPU and CPU"
        monkeypatch.setattr(group_of(engine)._devices[0].supervisor, "state", EngineState.DEAD)
        assert engine.device == "CPU"


async def test_a_bundle_without_blocks_is_refused(bundles: Bundles) -> None:
    with pytest.raises(BundleError, match=r"devices: .* has graphs that keep caches of their own|no cached blocks"):
        async with opened(bundles, "free", "fused"):
            pass
