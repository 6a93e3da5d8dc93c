"""When a worker counts as hung, on a clock of the test's own."""

from dataclasses import dataclass, field

import pytest

from engine.client.worker_process import HangBounds, Watchdog
from engine.messages import Heartbeat

BOUNDS = HangBounds(step_s=30.0, load_s=600.0)
IDLE = Heartbeat(False, 0, 0.0)


@dataclass
class Watch:
    """A watchdog whose worker answers what it is told to, or nothing."""

    bounds: HangBounds = BOUNDS
    load_s: float = 600.0
    now_s: float = 1000.0
    pings: int = 0
    dog: Watchdog = field(init=False)

    def __post_init__(self) -> None:
        self.dog = Watchdog(self.bounds, self.load_s, self.now_s)

    def period(self, answer: Heartbeat | None, step_s: float | None = None) -> str | None:
        """Ask if it is time, let a period go by, hear the answer; what is wrong after it."""
        if self.dog.take_ping():
            self.pings += 1
            if answer is not None:
                self.dog.heard(answer)
        self.now_s += self.bounds.period_s if step_s is None else step_s
        return self.dog.tick(self.now_s)

    def until_hung(self, answer: Heartbeat | None) -> tuple[str, float]:
        """What is found wrong in the end, and after how many seconds."""
        began_s = self.now_s
        for _ in range(100_000):
            if (found := self.period(answer)) is not None:
                return found, self.now_s - began_s
        raise AssertionError("nothing was found")


def ready(bounds: HangBounds = BOUNDS) -> Watch:
    """A watch over a worker that has loaded."""
    watch = Watch(bounds)
    watch.dog.ready()
    return watch


def test_a_worker_that_does_not_answer_hangs() -> None:
    watch = ready()
    assert watch.period(IDLE) is None
    assert watch.until_hung(None) == ("did not answer for 30 s", 30.0)
    assert watch.pings == 2  # one outstanding ping, however long it does not read
    watch = ready()
    assert watch.period(Heartbeat(True, 7, 10.0)) is None  # a period of the 30 s
    assert watch.until_hung(None) == ("has been in one step for 30 s", 27.0)


def test_a_worker_that_answers_hangs_in_one_step() -> None:
    assert ready().until_hung(Heartbeat(True, 7, 10.0)) == ("has been in one step for 30 s", 30.0)


def test_steps_that_follow_each_other_are_well_and_so_is_a_worker_without_work() -> None:
    watch = ready()
    assert not any(watch.period(Heartbeat(True, number, 10.0)) for number in range(1000))
    assert not any(watch.period(Heartbeat(False, 1000, 0.0)) for _ in range(1000))
    assert watch.pings == 2000


def test_a_step_that_should_be_long_may_be_long() -> None:
    found, after_s = ready().until_hung(Heartbeat(True, 1, 4000.0))
    assert (found, after_s) == ("has been in one step for 81 s", 81.0)  # 20 times 4 s, at the next look


def test_a_step_of_unknown_cost_may_take_ten_times_the_bound() -> None:
    assert ready().until_hung(Heartbeat(True, 1, 0.0))[1] == 300.0


@pytest.mark.parametrize("answer", [None, Heartbeat(True, 1, 10.0)])
def test_a_clock_that_jumps_kills_nobody(answer: Heartbeat | None) -> None:
    """The machine slept, or this process was stopped: eight hours that the worker did not have either."""
    watch = ready()
    assert watch.period(answer) is None
    assert watch.period(answer, step_s=8 * 3600.0) is None
    assert watch.period(Heartbeat(True, 2, 10.0)) is None
    watch.dog.heard(Heartbeat(True, 3, 10.0))
    assert watch.until_hung(None)[1] == 30.0  # and it is watched as before


def test_while_it_loads_it_is_not_asked_and_has_its_own_bound() -> None:
    watch = Watch()
    assert watch.until_hung(None) == ("was not ready after 600 s", 600.0)
    assert watch.pings == 0


def test_a_replacement_has_what_its_predecessors_took_to_load() -> None:
    assert BOUNDS.reload_s(1.5) == 120.0
    assert BOUNDS.reload_s(30.0) == 300.0
    assert BOUNDS.reload_s(90.0) == 600.0
    assert HangBounds(30.0, 0.0).reload_s(90.0) == 0.0
    watch = Watch(load_s=BOUNDS.reload_s(30.0))
    assert watch.until_hung(None)[1] == 300.0
    assert watch.dog.load_s == 300.0


def test_zero_means_never() -> None:
    bounds = HangBounds(step_s=0.0, load_s=0.0)
    watch = Watch(bounds, load_s=0.0)
    assert not any(watch.period(None) for _ in range(10_000))
    watch.dog.ready()
    assert not any(watch.period(Heartbeat(True, 1, 1.0)) for _ in range(10_000))
    assert watch.pings == 0
