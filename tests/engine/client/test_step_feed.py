"""Who watches the steps: the worker is told when that begins and ends, a slow reader misses steps and hears it."""

import asyncio

import msgspec
import pytest

from engine.client.step_feed import KEPT_RECORDS, MOST_WATCHERS, StepFeed
from engine.errors import Busy, BusyReason
from engine.messages import StepRecord, StepSegment


def record(number: int) -> StepRecord:
    return StepRecord(number, 0.0, 1.0, 2.0, 8, 64, (), 0, 0, 0, 64)


@pytest.fixture
def told() -> list[bool]:
    return []


@pytest.fixture
def feed(told: list[bool]) -> StepFeed:
    return StepFeed(told.append, lambda: 0.0)


async def test_the_worker_records_only_while_somebody_watches(feed: StepFeed, told: list[bool]) -> None:
    assert not feed.is_watched
    first, second = feed.open(), feed.open()
    assert (told, feed.is_watched) == ([True], True)
    first.end()
    first.end()
    assert told == [True]
    second.end()
    assert (told, feed.is_watched) == ([True, False], False)
    feed.open()
    assert told == [True, False, True]


async def test_every_watch_gets_every_step_since_it_was_opened(feed: StepFeed) -> None:
    early = feed.open()
    feed.give(record(1))
    late = feed.open()
    feed.give(record(2))
    assert [each.number for each in (await early.read())[0]] == [1, 2]
    assert [each.number for each in (await late.read())[0]] == [2]


async def test_no_two_workers_have_steps_or_sequences_of_one_number(feed: StepFeed) -> None:
    places = [feed.join(), feed.join()]
    watch = feed.open()
    counted = [(place, number) for number in range(1, 4) for place in places]
    for place, number in counted:
        segment = StepSegment(number, "decode", 1, 0, 0, 1)
        feed.give(msgspec.structs.replace(record(number), segments=(segment, segment)), place)
    records, _ = await watch.read()
    assert len({each.number for each in records}) == len(counted)
    assert [len({segment.sequence for segment in each.segments}) for each in records] == [1] * len(counted)
    assert len({each.segments[0].sequence for each in records}) == len(counted)


async def test_steps_of_all_workers_are_told_by_one_clock() -> None:
    now = [7.0]
    feed = StepFeed(lambda _: None, lambda: now[0])
    places = [feed.join(), feed.join()]
    watch = feed.open()
    now[0] = 9.0
    feed.open()
    for place, began_ms in zip(places, (7500.25, 7500.5), strict=True):
        feed.give(msgspec.structs.replace(record(1), began_ms=began_ms), place)
    records, _ = await watch.read()
    assert [each.began_ms for each in records] == [500.25, 500.5]


async def test_an_only_worker_keeps_its_numbers(feed: StepFeed) -> None:
    watch, place = feed.open(), feed.join()
    feed.give(record(5), place)
    assert await watch.read() == ([record(5)], 0)


async def test_a_reader_waits_for_the_next_step(feed: StepFeed) -> None:
    watch = feed.open()
    reading = asyncio.create_task(watch.read())
    await asyncio.sleep(0)
    assert not reading.done()
    feed.give(record(1))
    assert await reading == ([record(1)], 0)


async def test_a_slow_reader_misses_the_oldest_steps_and_is_told_how_many(feed: StepFeed) -> None:
    watch = feed.open()
    for number in range(KEPT_RECORDS + 3):
        feed.give(record(number))
    records, dropped = await watch.read()
    assert (records[0].number, len(records), dropped) == (3, KEPT_RECORDS, 3)
    feed.give(record(9))
    assert await watch.read() == ([record(9)], 0)


async def test_the_end_lets_readers_go_and_opens_no_other(feed: StepFeed, told: list[bool]) -> None:
    watch = feed.open()
    feed.give(record(1))
    feed.close()
    assert await watch.read() == ([record(1)], 0)
    assert await watch.read() == ([], 0)
    assert told == [True, False]
    with pytest.raises(Busy) as refused:
        feed.open()
    assert refused.value.reason is BusyReason.SHUTTING_DOWN


async def test_watchers_have_a_bound(feed: StepFeed) -> None:
    watches = [feed.open() for _ in range(MOST_WATCHERS)]
    with pytest.raises(Busy) as refused:
        feed.open()
    assert refused.value.reason is BusyReason.WATCHERS
    watches[0].end()
    feed.open()
