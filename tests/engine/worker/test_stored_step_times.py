"""Step times from one start to the next."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.bundle.manifest import load_manifest
from engine.bundle.stored_times import all_times
from engine.bundle.variant import StepShape
from engine.config import EngineConfig
from engine.worker.step_times import MachineReading, step_times
from tests.bundles import Bundles
from tests.engine.fake_runtime import FakeRuntime
from tests.engine.worker.quiet_clock import quiet_clock
from tests.engine.worker.simulation import fixed

ONE, EIGHT = StepShape(1, 64), StepShape(8, 64)


class Starts:
    """Starts of one bundle, each under a clock of its own."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.cache = cache
        self.config = EngineConfig(bundle=str(folder), cost_cache=str(cache))
        self.steps = 0

    def start(self, read: Callable[[], MachineReading]) -> dict[StepShape, float]:
        self._monkeypatch.setattr("engine.worker.step_times.read_machine", read)
        runtime = FakeRuntime(fixed((1, 64), (8, 64)), 64)
        found = step_times(self._folder, load_manifest(self._folder), self.config, runtime)
        self.steps = len(runtime.steps)
        return found

    def stored(self) -> list[dict[StepShape, float]]:
        return [each.of_shapes() for each in all_times(self.cache, self._folder)]


@pytest.fixture
def starts(bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Starts:
    return Starts(bundles("fixed"), tmp_path, monkeypatch)


def busy_clock() -> Callable[[], MachineReading]:
    """An eighth of a second a look, in which others use two cores."""
    quiet = quiet_clock(0.125)
    return lambda: replace(now := quiet(), busy_s=2 * now.clock_s)


def test_what_a_quiet_machine_measured_is_measured_once(starts: Starts) -> None:
    assert starts.start(quiet_clock(1.0)) == {ONE: 1000.0, EIGHT: 1000.0}
    assert starts.steps == 4
    assert starts.start(busy_clock()) == {ONE: 1000.0, EIGHT: 1000.0}
    assert starts.steps == 0


def test_what_a_busy_machine_measured_serves_and_is_measured_again(
    starts: Starts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    with caplog.at_level(logging.WARNING, "hexserve.worker"):
        assert starts.start(busy_clock()) == {ONE: 125.0, EIGHT: 125.0}
    (record,) = caplog.records
    assert record.message == (
        "2 of 2 step times are measured again at the next start: while ar1_cl65 ran other programs used 50% of the "
        "processor"
    )
    assert starts.stored() == [{}]
    steps = starts.steps
    assert starts.start(busy_clock()) == {ONE: 125.0, EIGHT: 125.0}
    assert starts.steps < steps  # what follows a disturbed shape is taken as it was
    assert starts.stored() == [{}]
    assert starts.start(quiet_clock(2.0)) == {ONE: 2000.0, EIGHT: 2000.0}
    assert starts.stored() == [{ONE: 2000.0, EIGHT: 2000.0}]


def test_times_of_a_start_that_was_cut_short_are_kept(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.worker.step_times.BUDGET_S", -1.0)
    assert starts.start(quiet_clock(1.0)) == {ONE: 1000.0} == starts.stored()[0]
    monkeypatch.undo()
    assert starts.start(quiet_clock(2.0)) == {ONE: 1000.0, EIGHT: 2000.0} == starts.stored()[0]


def test_another_processor_has_times_of_its_own(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("Oryon", "Ryzen", "Oryon"), 1):
        monkeypatch.setattr("engine.worker.step_times.processor_name", lambda name=name: name)
        assert starts.start(quiet_clock(float(number)))[ONE] == {1: 1000.0, 2: 2000.0, 3: 1000.0}[number]
    named = all_times(starts.cache, Path(starts.config.bundle))
    assert {each.processor for each in named} == {"Oryon", "Ryzen"}
