"""Timing shapes: what is measured, what is believed, what is kept."""

from collections.abc import Callable
from dataclasses import replace

from engine.bundle.variant import StepShape
from engine.worker.step_times import MachineReading, believed, is_complete, measure, shapes_to_time, whole_lines
from tests.engine.fake_runtime import FakeRuntime
from tests.engine.worker.quiet_clock import quiet_clock
from tests.engine.worker.simulation import fixed, free

ONE, EIGHT = StepShape(1, 64), StepShape(8, 64)


def clock(*seconds: float) -> Callable[[], MachineReading]:
    """Tells these times, one after the other."""
    times = iter(seconds)
    return lambda: MachineReading(next(times), 0.0, None)


def test_every_shape_is_timed_by_its_better_run() -> None:
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 64)
    # The start, and the budget; before, between and behind the two runs of the first shape; the same of the second.
    measured = measure(runtime, clock(0.0, 0.0, 1.0, 3.0, 5.5, 9.0, 10.0, 12.0, 14.5))
    assert measured.times == {ONE: 2000.0, EIGHT: 2000.0} == measured.kept


def test_a_disturbed_shape_runs_twice_more_and_two_runs_must_agree() -> None:
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 64)
    first = (0.0, 0.25, 0.75, 0.75, 1.0)  # 250 and 500 ms, then 250 once more
    second = (1.0, 1.125, 1.375, 1.375, 1.625, 1.625, 1.875)  # 125 and 250 ms, then twice one of 250
    measured = measure(runtime, clock(0.0, 0.0, *first, 1.0, *second))
    assert measured.times == {ONE: 250.0, EIGHT: 125.0}
    assert measured.disturbed == {EIGHT: "one run took 2.0 times as long as another"}
    assert measured.kept == {ONE: 250.0}


def test_fast_steps_run_until_it_is_seen_what_others_do() -> None:
    """A server that begins is itself such a program: what imports beside the first steps makes all of them slow."""
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 64)
    quiet = quiet_clock(1 / 32)  # 31 ms a run

    def others_in_the_first_second() -> MachineReading:
        now_s = quiet().clock_s
        return MachineReading(now_s, own_s=now_s, busy_s=now_s + min(now_s, 0.25))

    measured = measure(runtime, others_in_the_first_second, cores=2)
    assert measured.times == {ONE: 31.25, EIGHT: 31.25} == measured.kept
    assert len(runtime.steps) == 8 + 8 + 8  # once disturbed


def test_while_others_work_little_is_measured() -> None:
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 64)
    quiet = quiet_clock(1.0)

    def half_of_one_core() -> MachineReading:
        now_s = quiet().clock_s
        return MachineReading(now_s, own_s=now_s, busy_s=1.5 * now_s)

    measured = measure(runtime, half_of_one_core, cores=2)
    assert measured.times == {ONE: 1000.0}  # the 4 s are over
    assert measured.disturbed == {ONE: "other programs used 25% of the processor"}


def test_times_of_two_disturbed_starts_are_not_mixed() -> None:
    """Those of the earlier one fit each other; what it has not is measured."""
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 64)
    quiet = quiet_clock(0.125)

    def others_use_half() -> MachineReading:
        now_s = quiet().clock_s
        return MachineReading(now_s, own_s=0.0, busy_s=now_s)

    both = {ONE: 10.0, EIGHT: 80.0}
    assert measure(runtime, others_use_half, cores=2, disturbed=both).times == both
    found = measure(runtime, others_use_half, cores=2, disturbed={ONE: 10.0})
    assert found.times == {ONE: 10.0, EIGHT: 125.0} and not found.kept


def test_a_start_goes_on_where_the_budget_stopped_another() -> None:
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 64)
    # The start; the runs of the first shape; the budget is over before the second.
    measured = measure(runtime, clock(0.0, 0.0, 1.0, 3.0, 5.5, 21.0))
    assert measured.times == {ONE: 2000.0}
    again = measure(runtime, clock(0.0, 0.0, 4.0, 6.0, 8.5), known=measured.times)
    assert again.times == {ONE: 2000.0, EIGHT: 2000.0}
    assert measure(runtime, quiet_clock(0.0), known=again.times).times == again.times


def test_half_a_line_is_not_believed() -> None:
    shapes = free(64, 2048)
    wanted = shapes_to_time(shapes)
    times = {shape: 1.0 for shape in wanted if shape.past == 64} | {StepShape(1, 1024): 2.0}
    assert set(whole_lines(shapes, times)) == {shape for shape in wanted if shape.past == 64}
    assert believed(shapes, times) == whole_lines(shapes, times)
    assert not is_complete(shapes, times)
    assert is_complete(shapes, dict.fromkeys(wanted, 1.0))


def test_a_column_of_segments_costs_as_much_beside_any_number_of_rows() -> None:
    shapes = replace(free(64, 2048), segmented=True)
    near = [StepShape(rows, 64) for rows in (1, 8, 32, 64)]
    assert shapes_to_time(shapes) == [*near, StepShape(1, 1024)]
    times = {shape: 10.0 * shape.rows for shape in near} | {StepShape(1, 1024): 13.0}
    wide = {StepShape(shape.rows, 1024): 10.0 * shape.rows + 3.0 for shape in near}
    assert believed(shapes, times) == times | wide
    assert believed(shapes, {**times, StepShape(1, 1024): 9.0})[StepShape(8, 1024)] == 80.0  # never cheaper
    assert believed(shapes, {StepShape(1, 64): 10.0}) == {StepShape(1, 64): 10.0}
