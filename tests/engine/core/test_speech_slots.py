"""Texts that run together have neighbouring slots; a sound finds the slot that has heard it."""

from engine.core.plan import StepResult
from engine.core.policy import CostTable
from engine.core.text_scheduler import SpeechScheduler
from engine.request import Request, SamplingParams


class Slots:
    """A scheduler whose texts take a slot one by one, and end with their first token."""

    def __init__(self, count: int) -> None:
        self.scheduler = SpeechScheduler(CostTable({}), slots=count, places=8, features=1)

    def take(self, name: str, audio: bytes) -> int:
        self.scheduler.add(Request(name, (1, 2), SamplingParams(1), audio=audio), (), 0, 0.0)
        self.plan = self.scheduler.plan()
        ((slot,),) = (each.blocks for each in self.scheduler.sequences() if each.id == name)
        return slot

    def release(self, name: str) -> None:
        assert self.plan is not None
        self.scheduler.commit(self.plan, StepResult({name: (5,)}))
        assert not list(self.scheduler.violations())


def test_a_hole_among_the_taken_is_filled_first() -> None:
    slots = Slots(4)
    assert [slots.take(name, name.encode()) for name in "abc"] == [0, 1, 2]
    slots.scheduler.abort("b")
    assert slots.take("d", b"d") == 1
    assert not list(slots.scheduler.violations())


def test_what_was_heard_is_found_and_kept_longest() -> None:
    slots = Slots(3)
    for name in ("a", "b"):
        slots.take(name, name.encode())
        slots.release(name)
    assert slots.take("again", b"a") == 0
    slots.release("again")
    assert [slots.take(name, b"n") for name in "cd"] == [2, 1]


def test_who_leaves_is_found_among_those_that_run_and_those_that_wait() -> None:
    scheduler = SpeechScheduler(CostTable({}), slots=1, places=8, features=4)
    for name in ("runs", "waits", "stays"):
        scheduler.add(Request(name, (1, 2), SamplingParams(2), audio=b"loud"), (), 0, 0.0)
    assert scheduler.plan() is not None
    for name in ("runs", "waits"):
        assert scheduler.abort(name) is not None and scheduler.abort(name) is None
    assert [sequence.id for sequence in scheduler.sequences()] == ["stays"]
    plan = scheduler.plan()
    assert plan is not None and [segment.sequence.id for segment in plan.segments] == ["stays"]
