"""The worker process itself: what it tells its parent when it cannot start, and while a step does not end."""

import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.isolation.framing import FrameSplitter, read_frame
from engine.messages import (
    Abort,
    Command,
    Failed,
    Fatal,
    Heartbeat,
    Ping,
    Ready,
    Report,
    Stats,
    Submit,
    Tokens,
    decode_report,
    frame,
)
from engine.request import Request, SamplingParams
from engine.worker.process import Progress, ReportPipe, serve
from tests.engine.tiny_bundle import write_bundle
from tests.engine.worker.simulation import by_hand, fixed, simulate

GUARD_S = 60.0

NEVER_RUNS = """
import sys
from engine.errors import StepFailed
from engine.worker.process import main

def open_runtime(*_):
    raise StepFailed("graph ar1_cl64 failed: QNN graph execute error")

sys.exit(main(sys.argv[1:], open_runtime))
"""


def test_graphs_that_load_and_do_not_run_are_told_in_a_sentence(tmp_path: Path) -> None:
    write_bundle(tmp_path / "tiny")
    config = msgspec.json.encode(EngineConfig(bundle=str(tmp_path / "tiny"))).decode()
    done = subprocess.run([sys.executable, "-c", NEVER_RUNS, config], input=b"", capture_output=True, check=False)
    splitter = FrameSplitter()
    splitter.push(done.stdout)
    body = splitter.pop()
    assert body is not None
    report = decode_report(body)
    assert isinstance(report, Fatal) and not report.permanent
    assert report.message.startswith("graph ar1_cl64 failed: QNN graph execute error; the NPU gave up")
    assert done.returncode == 3 and b"Traceback" not in done.stderr


NEVER_RETURNS = """
import sys, threading
from tests.engine.fake_runtime import FakeRuntime
from engine.worker.process import main

class Stuck(FakeRuntime):
    def run(self, batch):
        threading.Event().wait()

def open_runtime(folder, manifest, shapes, config):
    return Stuck(shapes, 64)

sys.exit(main(sys.argv[1:], open_runtime))
"""


class Worker:
    """A worker process, its parent being the test."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process

    def send(self, command: Command) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(frame(command))
        self._process.stdin.flush()

    def report(self) -> Report:
        assert self._process.stdout is not None
        body = read_frame(self._process.stdout)
        assert body is not None
        return decode_report(body)

    def heartbeat(self) -> Heartbeat:
        """Its answer to a ping."""
        self.send(Ping())
        answer = self.report()
        assert isinstance(answer, Heartbeat)
        return answer


@contextmanager
def worker(program: str, folder: Path) -> Iterator[Worker]:
    """Run a worker over a tiny bundle; killed at the end."""
    write_bundle(folder)
    config = msgspec.json.encode(EngineConfig(str(folder), deterministic=True)).decode()
    command = [sys.executable, "-c", program, config]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        guard = threading.Timer(GUARD_S, process.kill)  # what it then reports is the end of its output
        guard.start()
        try:
            yield Worker(process)
        finally:
            guard.cancel()
            process.kill()


def test_pings_are_answered_in_the_middle_of_a_step_and_tell_that_it_does_not_end(tmp_path: Path) -> None:
    with worker(NEVER_RETURNS, tmp_path / "tiny") as process:
        assert isinstance(process.report(), Ready)
        assert process.heartbeat() == Heartbeat(is_busy=False, steps=0, expected_ms=0.0)
        process.send(Submit(Request("a", (1, 2, 3), SamplingParams(4))))
        while process.heartbeat().steps < 2:  # work has come, then the step begins
            pass
        assert {process.heartbeat() for _ in range(50)} == {Heartbeat(is_busy=True, steps=2, expected_ms=0.0)}


class Told(ReportPipe):
    """Notes what is reported."""

    def __init__(self) -> None:
        self.reports: list[Report] = []

    def send(self, report: Report) -> None:
        self.reports.append(report)


def test_reports_that_wait_for_the_next_step_arrive_whole_and_in_order() -> None:
    """Two requests one after the other, an abort that leaves nothing to run, a request that can never fit, the end."""
    world, told, inbox = simulate(fixed((8, 120))), Told(), queue.SimpleQueue[Command | None]()
    for name, tokens in (("a", (1, 2, 3)), ("b", (4, 5))):
        inbox.put(Submit(Request(name, tokens, SamplingParams(5, temperature=0.0))))
    inbox.put(Submit(Request("long", (1,) * 500, SamplingParams(5))))
    inbox.put(Submit(Request("gone", (6,), SamplingParams(5))))
    inbox.put(Abort("gone"))
    stats: list[Stats] = []
    step = world.loop.step

    def watched(*given: Any) -> Any:
        report = step(*given)
        if not world.scheduler.has_work:
            inbox.put(None)  # nobody comes any more
        return report

    world.loop.step = watched  # type: ignore[method-assign]
    serve(world.loop, inbox, told, Progress())
    outputs: dict[str, list[int]] = {"a": [], "b": []}
    for report in told.reports:
        if isinstance(report, Tokens):
            stats.append(report.stats)
            for event in report.events:
                outputs[event.id] += event.token_ids
    assert outputs == {"a": by_hand((1, 2, 3), 5), "b": by_hand((4, 5), 5)}
    assert [report.id for report in told.reports if isinstance(report, Failed)] == ["long"]
    assert [each.steps for each in stats] == sorted(each.steps for each in stats)
    assert (stats[-1].running, stats[-1].steps) == (0, 5)


def test_without_a_next_step_reports_leave_at_once() -> None:
    """The last tokens are there before the loop waits for its next command."""
    world, told = simulate(fixed((8, 120))), Told()

    class Inbox(queue.SimpleQueue):  # type: ignore[type-arg]
        def get(self, *given: Any, **named: Any) -> Any:
            if self.empty():  # the loop would block
                assert isinstance(told.reports[-1], Tokens) and told.reports[-1].events[0].finish is not None
                return None
            return super().get(*given, **named)

    inbox = Inbox()
    inbox.put(Submit(Request("a", (1, 2, 3), SamplingParams(3, temperature=0.0))))
    serve(world.loop, inbox, told, Progress())
    assert len(told.reports) == 3


def test_figures_are_told_after_each_step_of_a_prompt_that_is_alone() -> None:
    world, told = simulate(fixed((8, 120))), Told()

    class Inbox(queue.SimpleQueue):  # type: ignore[type-arg]
        def get(self, *given: Any, **named: Any) -> Any:
            return None if self.empty() else super().get(*given, **named)

    inbox = Inbox()
    inbox.put(Submit(Request("a", tuple(range(1, 25)), SamplingParams(1, temperature=0.0))))
    serve(world.loop, inbox, told, Progress())
    reports = [report for report in told.reports if isinstance(report, Tokens)]
    assert [(len(report.events), report.stats.steps, report.stats.running) for report in reports] == [
        (0, 1, 1),
        (0, 2, 1),
        (1, 3, 0),
    ]
