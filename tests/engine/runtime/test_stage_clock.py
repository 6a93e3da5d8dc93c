"""Time goes to the stage that ends."""

from engine.runtime.interface import StageClock


def test_stages_add_up() -> None:
    ticks = iter([10.0, 11.0, 13.0, 20.0, 24.0])
    clock = StageClock(lambda: next(ticks))
    clock.begin()
    clock.mark("plan")
    clock.mark("run")
    clock.begin()  # what was between two steps counts as nothing
    clock.mark("run")
    assert clock.seconds == {"plan": 1.0, "run": 6.0}
