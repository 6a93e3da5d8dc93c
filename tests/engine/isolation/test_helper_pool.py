"""Helper processes: what a question does to one is its own, what happens to an innocent one costs nobody anything."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.errors import BundleError, Busy, EngineFailure
from engine.isolation import helper_pool
from engine.isolation.helper_pool import Answer, Failure, HelperLimits, HelperPool
from tests.engine.isolation.helper_bench import HelperBench, is_alive

SCRIPT = Path(__file__).with_name("scripted_helper.py")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
FOREVER = HelperLimits(600.0, 2)
ALONE = HelperLimits(600.0, 1)


def accept(answer: Answer) -> None:
    if answer in (b"refuse", *Failure):
        raise BundleError(f"of no use: {answer!r}")


class Bench(HelperBench[HelperPool]):
    def __call__(self, limits: HelperLimits, opening: str = "open") -> HelperPool:
        command = [sys.executable, str(SCRIPT), str(self.folder)]
        self.made.append(HelperPool("the helper", command, opening.encode(), accept, limits))
        return self.made[-1]


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.guarded():
        yield made
    assert all(pool.pids == () for pool in made.made)


async def test_the_first_helper_is_warm_and_serves_who_comes(bench: Bench) -> None:
    pool = bench(FOREVER)
    await pool.start()
    assert pool.pids == tuple(bench.starts)
    assert [await pool.ask(str(index).encode()) for index in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert len(bench.starts) == 1


async def test_helpers_that_nobody_asks_end_and_others_come_when_they_are_needed(bench: Bench) -> None:
    pool = bench(HelperLimits(600.0, 2, idle_s=0.0))
    await pool.start()
    for count in (1, 2):
        while pool.pids:
            await asyncio.sleep(0)
        assert len(bench.starts) == count
        assert await pool.ask(b"a") == b"a"


async def test_one_that_is_asked_does_not_end(bench: Bench) -> None:
    pool = bench(HelperLimits(600.0, 2, idle_s=0.0))
    hanging = asyncio.create_task(pool.ask(b"hang"))
    await bench.hanging()
    assert await pool.ask(b"a") == b"a"
    while len(pool.pids) > 1:
        await asyncio.sleep(0)
    assert pool.pids == (bench.starts[0],) and not hanging.done()
    hanging.cancel()
    await asyncio.wait([hanging])


async def test_many_at_once_get_their_own_answers(bench: Bench) -> None:
    pool = bench(FOREVER)
    questions = [str(index).encode() for index in range(64)]
    assert await asyncio.gather(*map(pool.ask, questions)) == questions
    assert len(bench.starts) <= 2


async def test_a_neighbour_is_answered_while_a_helper_hangs(bench: Bench) -> None:
    pool = bench(FOREVER)
    hanging = asyncio.create_task(pool.ask(b"hang"))
    await bench.hanging()
    assert await pool.ask(b"a") == b"a"
    assert not hanging.done()
    hanging.cancel()  # who asked has left: the helper goes with him
    await asyncio.wait([hanging])
    assert await pool.ask(b"b") == b"b"
    assert len(bench.starts) == 2 and not is_alive(bench.starts[0])


@POSIX
async def test_out_of_time_is_the_questions_own_fault(bench: Bench) -> None:
    pool = bench(ALONE)
    assert await pool.ask(b"loop") is Failure.TOO_SLOW
    assert len(bench.starts) == 1  # it is not asked again
    assert await pool.ask(b"a") == b"a"


async def test_a_death_is_tried_once_more_in_a_fresh_helper(bench: Bench) -> None:
    pool = bench(ALONE)
    assert await pool.ask(b"die once") == b"die once"
    assert await pool.ask(b"die") is Failure.DIED
    assert len(bench.starts) == 3
    assert await pool.ask(b"a") == b"a"


@POSIX
async def test_a_helper_that_is_killed_while_it_idles_costs_nobody_anything(bench: Bench) -> None:
    pool = bench(ALONE)
    await pool.start()
    os.kill(bench.starts[0], signal.SIGKILL)
    assert await pool.ask(b"a") == b"a"
    assert len(bench.starts) == 2


@POSIX
@pytest.mark.parametrize("is_idle", [True, False], ids=["idle", "busy"])
async def test_a_helper_that_hangs_is_replaced_and_the_question_asked_again(
    bench: Bench, is_idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_pool, "GRACE_S", 0.2)
    pool = bench(HelperLimits(0.2, 1))
    await pool.start()
    if is_idle:
        os.kill(bench.starts[0], signal.SIGSTOP)
    question = b"a" if is_idle else b"stop once"
    assert await pool.ask(question) == question
    assert len(bench.starts) == 2 and not is_alive(bench.starts[0])
    assert await pool.ask(b"stop") is Failure.HUNG
    assert await pool.ask(b"b") == b"b"


async def test_where_no_helper_ends_itself_one_that_overruns_is_too_slow(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper_pool, "ENDS_ITSELF", False)  # as on Windows
    pool = bench(HelperLimits(0.2, 1))
    assert await pool.ask(b"hang") is Failure.TOO_SLOW
    assert len(bench.starts) == 1  # it is not asked again
    assert await pool.ask(b"a") == b"a"


@POSIX
async def test_a_helper_that_is_stopped_while_it_idles_is_noticed_before_its_time_is_up(bench: Bench) -> None:
    pool = bench(ALONE)
    await pool.start()
    os.kill(bench.starts[0], signal.SIGSTOP)
    assert await pool.ask(b"a") == b"a"
    assert len(bench.starts) == 2


async def test_an_opening_that_is_refused(bench: Bench) -> None:
    with pytest.raises(BundleError, match="refuse"):
        await bench(ALONE, "refuse").start()
    with pytest.raises(BundleError, match="DIED"):
        await bench(ALONE, "die").start()
    assert len(bench.starts) == 3


async def test_an_opening_at_which_a_helper_dies_is_tried_once_more(bench: Bench) -> None:
    await bench(ALONE, "die once").start()
    assert len(bench.starts) == 2


async def test_the_end_wakes_who_waits(bench: Bench) -> None:
    pool = bench(ALONE)
    hanging = asyncio.create_task(pool.ask(b"hang"))
    await bench.hanging()
    waiting = asyncio.create_task(pool.ask(b"a"))
    await pool.close()
    for task in (hanging, waiting):
        with pytest.raises(Busy, match="shutting down"):
            await task
    with pytest.raises(Busy, match="shutting down"):
        await pool.start()
    assert len(bench.starts) == 1


async def test_a_helper_that_cannot_start_is_our_fault(tmp_path: Path) -> None:
    for command in (
        [str(tmp_path / "nothing")],
        [sys.executable, "-c", "pass"],
        [sys.executable, "-c", "print('x' * 64)"],  # what it writes is no frame
    ):
        with pytest.raises(EngineFailure, match="the helper"):
            await HelperPool("the helper", command, b"", accept, ALONE).ask(b"a")
