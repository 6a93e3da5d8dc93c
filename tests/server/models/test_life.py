"""The life of a server with several models: load, drain, end. In process, with real signals."""

import asyncio
import signal
from collections.abc import AsyncIterator

import httpx
import pytest

from engine.config import EngineConfig
from server import run
from server.middleware.auth import KeyRing
from server.models.manager import ManagerRules
from server.settings import Settings
from tests.server.models.stage import Stage, settled

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


class SeveralLives:
    """A server over a stage, and a client for it."""

    def __init__(self, stage: Stage, **options: float) -> None:
        self.stage = stage
        listener = run.bind("127.0.0.1", 0)
        settings = Settings(EngineConfig("unused"), **options)  # type: ignore[arg-type]
        self.serving = asyncio.create_task(run.serve(settings, KeyRing(), stage.manager, listener))
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=10)


@pytest.fixture
async def life() -> AsyncIterator[SeveralLives]:
    stage = Stage(rules=ManagerRules(load_wait_s=30))
    made = SeveralLives(stage, drain_s=60.0)
    yield made
    if not made.serving.done():
        made.serving.cancel()
        await asyncio.wait([made.serving])
    await made.client.aclose()


async def test_it_is_ready_before_anything_is_loaded(life: SeveralLives) -> None:
    assert (await life.client.get("/health/ready")).status_code == 200
    assert life.stage.states == ["unloaded"] * 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_wait_for_a_model_and_lets_what_runs_finish(
    life: SeveralLives, number: signal.Signals
) -> None:
    await life.stage.use(0)
    running = life.stage.loaders[0].engines[0]
    running.hold(1)
    life.stage.loaders[1].may_start.clear()
    async with life.client.stream(
        "POST", "/v1/chat/completions", json=HELLO | {"model": "a", "stream": True}
    ) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        waiting = asyncio.create_task(life.client.post("/v1/chat/completions", json=HELLO | {"model": "b"}))
        await life.stage.loaders[1].starting.wait()
        signal.raise_signal(number)
        if number == signal.SIGTERM:
            while (await life.client.get("/health/ready")).status_code != 503:
                await settled()
            refused = await life.client.post("/v1/chat/completions", json=HELLO | {"model": "c"})
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            running.release(100)
        rest = [line async for line in lines]
    assert rest[-2:] == ["data: [DONE]", ""] if number == signal.SIGTERM else "shutting down" in rest[-2]
    async with asyncio.timeout(10):
        refused = await waiting
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert await life.serving == run.ENDED
    assert life.stage.states == ["unloaded"] * 3
    assert [loader.starts for loader in life.stage.loaders] == [1, 1, 0]
