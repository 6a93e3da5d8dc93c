"""Merging token streams: order, back pressure, failures, and that everything is given back."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from unittest.mock import Mock

import pytest

from engine.errors import Busy, EngineFailure, StepFailed
from engine.request import Delta, Request, SamplingParams
from server.generation.stream import DELTAS_AHEAD, ChoiceDelta, MergedStream
from server.http.errors import RequestTimeout
from server.http.in_flight import InFlight
from server.observability.metrics import RequestWatch
from tests.server.one_model import metrics_of
from tests.server.scripted_engine import ScriptedEngine, ScriptedTokenStream, say


def generate(engine: ScriptedEngine, count: int) -> list[ScriptedTokenStream]:
    return [engine.submit(Request(str(i), (1, 2), SamplingParams(50))) for i in range(count)]


def merge(engine: ScriptedEngine, in_flight: InFlight, count: int = 1) -> MergedStream:
    return MergedStream(generate(engine, count), in_flight, RequestWatch(metrics_of(engine), "m", count, 50))


async def drained(stream: MergedStream, finishes: int) -> list[ChoiceDelta]:
    found: list[ChoiceDelta] = []
    while sum(arrival.delta.finish is not None for arrival in found) < finishes:
        found += await stream.deltas()
    return found


@pytest.mark.parametrize("count", [1, 2, 7])
async def test_each_choice_keeps_its_order(engine: ScriptedEngine, count: int) -> None:
    in_flight = InFlight()
    stream = merge(engine, in_flight, count)
    assert in_flight.count == 1
    found = await drained(stream, count)
    for choice in range(count):
        assert "".join(delta.text for number, delta in found if number == choice) == "Hello there, friend!"
    stream.abort()
    stream.abort()
    assert (in_flight.count, engine.aborted) == (0, [])


async def test_an_unread_stream_stops_reading_its_generation(engine: ScriptedEngine) -> None:
    taken: list[int] = []

    class Counting(list[Delta]):
        def __iter__(self) -> Iterator[Delta]:
            for number in range(1000):
                taken.append(number)
                yield Delta("x", (1,))

    engine.script = lambda _: Counting()
    stream = merge(engine, InFlight())
    for _ in range(5000):
        await asyncio.sleep(0)
    assert DELTAS_AHEAD <= len(taken) <= DELTAS_AHEAD + 2
    assert len(await stream.deltas()) == DELTAS_AHEAD
    for _ in range(5000):
        await asyncio.sleep(0)
    stream.abort()
    assert engine.aborted == ["0"]
    for _ in range(3):
        await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}  # none waits for a reader any more


async def test_a_failure_comes_after_what_arrived(engine: ScriptedEngine) -> None:
    engine.script = lambda request: [Delta("a", (1,)), StepFailed("broken")] if request.id == "0" else []
    stream = merge(engine, InFlight())
    assert [arrival.delta.text for arrival in await stream.deltas()] == ["a"]
    for _ in range(2):
        with pytest.raises(StepFailed):
            await stream.deltas()
    stream.abort()


@pytest.mark.parametrize(("waited_s", "left_s"), [(0.0, 3.0), (2.5, 0.5), (7.0, 0.0)])
async def test_time_that_passed_before_there_was_a_stream_counts(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, waited_s: float, left_s: float
) -> None:
    call_later = Mock()
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", call_later)
    engine.hold()
    watch = RequestWatch(metrics_of(engine), "m", 1, 50)
    stream = MergedStream(generate(engine, 1), InFlight(), watch, timeout_s=3.0, waited_s=waited_s)
    delay_s, then, error = call_later.call_args.args
    assert delay_s == left_s
    then(error)
    with pytest.raises(RequestTimeout, match="longer than 3 s"):
        await stream.deltas()
    stream.abort()


@pytest.mark.parametrize("script", [[], [Delta("a", (1,))]])
async def test_a_generation_that_just_ends_is_a_failure(engine: ScriptedEngine, script: Sequence[Delta]) -> None:
    engine.script = lambda _: script
    stream = merge(engine, InFlight())
    with pytest.raises(EngineFailure, match="without a finish"):
        await drained(stream, 1)
    stream.abort()


async def test_a_bug_in_a_generation_is_a_failure(engine: ScriptedEngine, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(ScriptedTokenStream):
        async def __aiter__(self) -> AsyncIterator[Delta]:
            raise ZeroDivisionError("secret")
            yield

    request = Request("0", (1,), SamplingParams(5))
    stream = MergedStream([Broken(engine, request, [])], InFlight(), RequestWatch(metrics_of(engine), "m", 1, 5))
    with pytest.raises(EngineFailure, match="ZeroDivisionError"):
        await stream.deltas()
    assert "secret" in caplog.text
    stream.abort()


async def test_ending_fails_every_request_and_late_ones_too(engine: ScriptedEngine) -> None:
    engine.hold(0)
    in_flight = InFlight()
    stream = merge(engine, in_flight, 2)
    assert not await in_flight.wait_empty(0)
    in_flight.end()
    with pytest.raises(Busy):
        await stream.deltas()
    stream.abort()
    assert await in_flight.wait_empty(0)
    assert sorted(engine.aborted) == ["0", "1"]
    late = merge(engine, in_flight)  # it was tokenising meanwhile
    with pytest.raises(Busy):
        await late.deltas()
    late.abort()


async def test_a_launch_is_all_or_nothing(engine: ScriptedEngine) -> None:
    engine.max_queued = 2
    with pytest.raises(Busy):
        generate(engine, 3)
    assert say(Request("0", (1,), SamplingParams(1)))[0].finish is not None
