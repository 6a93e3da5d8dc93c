"""The inputs of one request: some at a time, and none left behind however it ends."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from engine.errors import Busy, BusyReason, EngineFailure, HexserveError
from engine.request import Delta, FinishReason
from server.generation.stream import INPUTS_AT_ONCE, InputSlots, PooledRun
from server.http.errors import RequestTimeout
from server.http.in_flight import InFlight
from server.observability.metrics import RequestWatch
from tests.server.generation.test_merged_stream import metrics_of
from tests.server.scripted_engine import ScriptedEngine


class Text:
    """One input's stream: its vector comes when `release` is set."""

    prompt_tokens = 3

    def __init__(self, number: int, release: asyncio.Event) -> None:
        self.number = number
        self.release = release
        self.aborted = False

    async def __aiter__(self) -> AsyncIterator[Delta]:
        await self.release.wait()
        yield Delta("", finish=FinishReason.LENGTH, vector=bytes([self.number % 256]))

    def abort(self) -> None:
        self.aborted = True


class Stage:
    """What a run needs, and the streams that it has opened."""

    def __init__(self, slots: int = 100, requests: int = 4) -> None:
        self.release = asyncio.Event()
        self.opened: list[Text] = []
        self.in_flight = InFlight()
        self.slots = InputSlots(slots, requests)
        self.refuse_at: dict[int, HexserveError] = {}
        self.watches: list[RequestWatch] = []

    def submit(self, number: int) -> Text:
        if number in self.refuse_at:
            raise self.refuse_at[number]
        self.opened.append(Text(number, self.release))
        return self.opened[-1]

    def run(self, count: int, timeout_s: float = 0.0) -> PooledRun:
        self.watches.append(RequestWatch(metrics_of(ScriptedEngine()), "m", 1, 0))
        return PooledRun(self.submit, count, self.slots, self.in_flight, self.watches[-1], timeout_s)

    def ends(self) -> Counter[str]:
        """How inputs ended, as the metrics count them."""
        return Counter(end.reason for watch in self.watches for end in watch.facts.ended)

    def check_clean(self) -> None:
        assert all(text.aborted for text in self.opened)
        assert self.in_flight.count == 0 and not self.slots.places.locked()


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


async def test_vectors_come_in_order_of_the_inputs() -> None:
    stage = Stage()
    running = asyncio.create_task(stage.run(150).vectors())
    await until(lambda: len(stage.opened) == INPUTS_AT_ONCE)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(stage.opened) == INPUTS_AT_ONCE and stage.in_flight.count == 1
    stage.release.set()
    assert await running == [bytes([number]) for number in range(150)]
    stage.check_clean()
    assert stage.ends() == {"length": 150}


async def test_requests_share_the_places_in_turn() -> None:
    stage = Stage(slots=10)
    first = asyncio.create_task(stage.run(40).vectors())
    second = asyncio.create_task(stage.run(1).vectors())
    await until(lambda: len(stage.opened) == 10)
    stage.release.set()
    await asyncio.gather(first, second)
    stage.check_clean()


async def test_a_client_that_leaves_takes_its_inputs_along() -> None:
    stage = Stage()
    running = asyncio.create_task(stage.run(100).vectors())
    await until(lambda: len(stage.opened) == INPUTS_AT_ONCE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    stage.check_clean()
    assert len(stage.opened) == INPUTS_AT_ONCE
    assert stage.ends() == {"abort": INPUTS_AT_ONCE}


@pytest.mark.parametrize(
    "error",
    [Busy("full", BusyReason.WORKER), EngineFailure("broken")],
    ids=["refused", "failed"],
)
async def test_an_input_that_fails_ends_the_request(error: HexserveError) -> None:
    stage = Stage()
    stage.refuse_at[70] = error
    running = asyncio.create_task(stage.run(100).vectors())
    stage.release.set()
    with pytest.raises(type(error)):
        await running
    stage.check_clean()


async def test_it_ends_with_the_server_and_after_its_time() -> None:
    stage = Stage()
    ended = asyncio.create_task(stage.run(3).vectors())
    await until(lambda: len(stage.opened) == 3)
    stage.in_flight.end()
    with pytest.raises(Busy):
        await ended
    stage.check_clean()
    late = Stage()
    with pytest.raises(RequestTimeout, match=r"0\.01 s"):
        await late.run(3, timeout_s=0.01).vectors()
    late.check_clean()


async def test_more_requests_than_may_wait_are_refused() -> None:
    stage = Stage(requests=2)
    running = [asyncio.create_task(stage.run(1).vectors()) for _ in range(2)]
    await until(lambda: len(stage.opened) == 2)
    with pytest.raises(Busy) as refused:
        await stage.run(1).vectors()
    assert refused.value.reason is BusyReason.REQUESTS
    stage.release.set()
    await asyncio.gather(*running)
    assert await stage.run(1).vectors() == [b"\0"]
    stage.check_clean()
