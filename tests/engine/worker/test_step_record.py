"""What a watched loop says of its steps: rows by sequence and kind. One that nobody watches says nothing."""

import queue

from engine.messages import Command, Report, StepRecord, StepSegment, Submit, Tokens, Watch
from engine.request import Request, SamplingParams
from engine.worker.process import Progress, ReportPipe, serve
from tests.engine.worker.simulation import RightGuesses, fixed, simulate


class Noted(ReportPipe):
    def __init__(self) -> None:
        self.reports: list[Report] = []

    def send(self, report: Report) -> None:
        self.reports.append(report)


def records(*commands: Command) -> list[StepRecord]:
    """The records of a worker that gets these commands and then has nothing more to do."""
    world, noted = simulate(fixed((8, 120))), Noted()
    inbox = queue.SimpleQueue[Command | None]()
    for command in commands:
        inbox.put(command)
    step = world.loop.step

    def last(*given: object) -> object:
        report = step(*given)  # type: ignore[arg-type]
        if not world.scheduler.has_work:
            inbox.put(None)
        return report

    world.loop.step = last  # type: ignore[method-assign, assignment]
    serve(world.loop, inbox, noted, Progress())
    assert any(isinstance(report, Tokens) and report.events for report in noted.reports)
    return [report for report in noted.reports if isinstance(report, StepRecord)]


def submit(name: str, prompt: int, tokens: int) -> Submit:
    return Submit(Request(name, tuple(range(1, prompt + 1)), SamplingParams(tokens, temperature=0.0)))


def test_rows_of_prompts_and_decodes_stand_beside_each_other() -> None:
    found = records(Watch(True), submit("a", 2, 3), submit("b", 12, 1))
    assert [each.number for each in found] == [1, 2, 3]
    assert found[0].segments == (StepSegment(0, "prefill", 2, 0, 0, 1), StepSegment(1, "prefill", 6, 0, 0, 0))
    assert found[1].segments == (StepSegment(1, "prefill", 6, 0, 0, 1), StepSegment(0, "decode", 1, 0, 0, 1))
    assert found[2].segments == (StepSegment(0, "decode", 1, 0, 0, 1),)
    assert {(each.rows, each.context, each.kv_slots_total) for each in found} == {(8, 128, 112)}
    assert [(each.running, each.waiting) for each in found] == [(2, 0), (1, 0), (0, 0)]
    assert found[0].kv_slots_used >= 16 and found[2].kv_slots_used == 0


def test_times_are_those_of_the_clock() -> None:
    found = records(Watch(True), submit("a", 2, 3))
    assert all(0 < each.run_ms <= each.step_ms for each in found)
    assert [each.began_ms for each in found] == sorted({each.began_ms for each in found})
    assert found[0].began_ms == 0.0


def test_nobody_watches() -> None:
    assert records(submit("a", 2, 3)) == []
    assert records(Watch(True), Watch(False), submit("a", 2, 3)) == []


def test_guessed_rows_and_those_that_were_right() -> None:
    world = simulate(fixed((8, 120)), lookup=RightGuesses(), lookup_rows=4)
    world.loop.watch(True)
    world.submit("a", (1, 2, 3), 9)
    found = []
    while world.scheduler.has_work:
        report = world.loop.step()
        assert report.record is not None
        found += report.record.segments
    guessed = [segment for segment in found if segment.guesses]
    assert guessed
    for segment in guessed:
        assert segment.rows == 1 + segment.guesses
        assert segment.accepted == segment.guesses
        assert segment.tokens == 1 + segment.accepted
    assert sum(segment.tokens for segment in found) == 9
