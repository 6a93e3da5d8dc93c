"""Timing shapes: what is measured, what is believed, what is remembered."""

from dataclasses import replace
from pathlib import Path

from engine.bundle.variant import StepShape
from engine.runtime.step_times import (
    believed,
    is_complete,
    load_times,
    measure,
    save_times,
    shapes_to_time,
    whole_lines,
)
from tests.engine.fake_runtime import FakeRuntime
from tests.engine.worker.simulation import fixed, free


def test_every_shape_is_timed_by_its_better_run() -> None:
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 1, 64)
    # The start; two runs of the first shape; the budget; two runs of the second.
    ticks = iter([0.0, 0.0, 1.0, 3.0, 3.5, 9.0, 10.0, 12.0, 20.0, 23.0])
    times = measure(runtime, lambda: next(ticks))
    assert times == {StepShape(1, 64): 500.0, StepShape(8, 64): 2000.0}


def test_a_start_goes_on_where_the_budget_stopped_another() -> None:
    runtime = FakeRuntime(fixed((1, 64), (8, 64)), 1, 64)
    # The start; two runs of the first shape; the budget is over before the second.
    ticks = iter([0.0, 0.0, 1.0, 3.0, 3.5, 21.0])
    times = measure(runtime, lambda: next(ticks))
    assert times == {StepShape(1, 64): 500.0}
    ticks = iter([0.0, 1.0, 2.0, 4.0, 6.0, 9.0])
    again = measure(runtime, lambda: next(ticks), times)
    assert again == {StepShape(1, 64): 500.0, StepShape(8, 64): 2000.0}
    assert measure(runtime, lambda: 0.0, again) == again


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


def test_times_are_remembered_whole(tmp_path: Path) -> None:
    times = {StepShape(1, 64): 1.5, StepShape(8, 64): 2.5}
    save_times(tmp_path / "deep" / "costs.json", times)
    assert load_times(tmp_path / "deep" / "costs.json") == times
    (tmp_path / "bad.json").write_text("{")
    assert load_times(tmp_path / "bad.json") is None
    assert load_times(tmp_path / "none.json") is None
