"""The process that owns the graphs: receive, step, reply. Its argument is an EngineConfig as JSON.
Standard input carries commands, standard output reports (`engine/messages.py`). End of input means that the parent is
gone: the worker ends too. What native code prints goes to standard error."""

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine import messages
from engine.config import EngineConfig
from engine.errors import BundleError, StepFailed
from engine.logs.handler import DroppingHandler, standard_error, worker_format
from engine.runtime.qnn.environment import as_variables, explain
from engine.worker.assembly import OpenRuntime, assemble, open_onnx
from engine.worker.kv_file import SequenceMover
from engine.worker.step import EngineLoop

Inbox = queue.SimpleQueue[messages.Command | None]


class ReportPipe:
    """Reports leave whole, whichever thread sends them."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, report: messages.Report) -> None:
        """Write one report. When the parent is gone, so is every stream: the process ends."""
        data = messages.frame(report)
        try:
            with self._lock:
                self._pipe.write(data)
                self._pipe.flush()
        except OSError:  # BrokenPipeError, or plain EINVAL on Windows
            os._exit(0)


class Outbox:
    """Sends in a thread of its own, in order. Who has nothing to run next flushes, so that nothing waits for long."""

    def __init__(self, pipe: ReportPipe) -> None:
        self._pipe = pipe
        self._queued: list[messages.Report] = []
        self._sending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reports")

    def hold(self, *reports: messages.Report) -> None:
        self._queued += reports

    def release(self) -> None:
        """A step begins: send what is queued meanwhile."""
        if self._queued:
            queued, self._queued = self._queued, []
            self._sending = self._thread.submit(self._send, queued)

    def flush(self) -> None:
        """Send what is queued and return when nothing is left to send."""
        self.release()
        if self._sending is not None:
            self._sending.result()

    def close(self) -> None:
        self.flush()
        self._thread.shutdown()

    def _send(self, queued: list[messages.Report]) -> None:
        for report in queued:
            self._pipe.send(report)


class Progress:
    """Written by the loop's thread, read by another one: every write replaces the whole heartbeat."""

    heartbeat = messages.Heartbeat(is_busy=False, steps=0, expected_ms=0.0)

    def begin(self, expected_ms: float) -> None:
        """A step begins that should take `expected_ms`, 0 = not known; also called for work before the first step."""
        self.heartbeat = messages.Heartbeat(True, self.heartbeat.steps + 1, expected_ms)

    def rest(self) -> None:
        self.heartbeat = messages.Heartbeat(False, self.heartbeat.steps, 0.0)


log = logging.getLogger("hexserve.worker")

GRACE_S = 5.0
# How long a thread that writes keys may keep the loop from going on: Python's own 5 ms are a twentieth of a step.
SWITCH_S = 0.0005


def main(arguments: list[str], open_runtime: OpenRuntime = open_onnx) -> int:
    """Run until told to stop; exit code 0 after Shutdown or end of input, 3 when the bundle cannot be served."""
    commands, reports = _take_pipes()
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    config = msgspec.json.decode(arguments[0], type=EngineConfig)
    os.environ.update(as_variables(config))
    form, handlers = worker_format(arguments[1] if len(arguments) > 1 else ""), [DroppingHandler(standard_error())]
    logging.basicConfig(level=config.log_level.upper(), format=form, handlers=handlers)
    inbox: Inbox = queue.SimpleQueue()
    progress = Progress()
    receiving = (commands, inbox, reports, progress, max(GRACE_S, config.save_s))
    threading.Thread(target=_receive, args=receiving, name="commands", daemon=True).start()
    try:
        assembled = assemble(config, open_runtime)
    except (BundleError, MemoryError) as error:
        why = "" if isinstance(error, BundleError) else "not enough memory for the pool and graphs: "
        reports.send(messages.Fatal(f"{why}{error}", permanent=True))
        return 3
    except StepFailed as error:  # while the shapes are timed; an NPU that is being restarted may run them later
        reports.send(messages.Fatal("; ".join(filter(None, (str(error), explain(str(error))))), permanent=False))
        return 3
    reports.send(assembled.ready)
    try:
        serve(assembled.loop, inbox, reports, progress, assembled.mover)
        if assembled.kv_file is not None:
            assembled.kv_file.save()
    finally:
        assembled.loop.close()
        assembled.runtime.close()
    return 0


def serve(
    loop: EngineLoop, inbox: Inbox, reports: ReportPipe, progress: Progress, mover: SequenceMover | None = None
) -> None:
    """Alternate between commands and steps until Shutdown or end of input."""
    outbox = Outbox(reports)
    try:
        while True:
            is_idle = not loop.has_work
            if is_idle:
                progress.rest()
            for command in _pending(inbox, block=is_idle):
                if is_idle:
                    progress.begin(0.0)
                if command is None or isinstance(command, messages.Shutdown):
                    return
                outbox.flush()
                _obey(loop, command, reports, mover)
            if not loop.has_work:
                continue
            report = loop.step(progress.begin, outbox.release)
            if report.has_run or report.failures:
                outbox.hold(*report.failures, messages.Tokens(report.events, loop.stats()))
                loop.stages.mark("send")
            if report.record is not None:
                outbox.hold(report.record)
            if not loop.has_work:
                outbox.flush()
                for violation in loop.violations():
                    log.error("invariant broken: %s", violation)
    finally:
        outbox.close()


def _obey(loop: EngineLoop, command: messages.Command, reports: ReportPipe, mover: SequenceMover | None) -> None:
    if isinstance(command, messages.Submit):
        request = command.request
        if command.caches and mover is not None:
            log.debug("%s comes with %d new blocks", request.id, mover.take(Path(command.caches)))
        seed = request.params.seed if request.params.seed is not None else int.from_bytes(os.urandom(7))
        try:
            loop.add(request, command.emitted, seed, time.monotonic())
        except ValueError as error:
            reports.send(messages.Failed(request.id, str(error), "invalid"))
    elif isinstance(command, messages.Abort):
        loop.abort(command.id)
        if not loop.has_work:
            reports.send(messages.Tokens((), loop.stats()))
    elif isinstance(command, messages.HandOver) and mover is not None:
        began = time.perf_counter()
        blocks = mover.give(command.id, Path(command.caches))
        loop.abort(command.id)
        reports.send(messages.HandedOver(command.id, command.caches, blocks, 1000.0 * (time.perf_counter() - began)))
        if not loop.has_work:
            reports.send(messages.Tokens((), loop.stats()))
    elif isinstance(command, messages.Watch):
        loop.watch(command.is_on)


def _pending(inbox: Inbox, block: bool) -> Iterator[messages.Command | None]:
    """Every command that has arrived; waits for the first one when there is nothing else to do."""
    if block:
        yield inbox.get()
    while not inbox.empty():
        yield inbox.get()


def _receive(commands: BinaryIO, inbox: Inbox, reports: ReportPipe, progress: Progress, grace_s: float) -> None:
    """Thread: answer pings, hand on other commands until end of input; then end the process even in a stuck step."""
    try:
        while (command := messages.read_command(commands)) is not None:
            if isinstance(command, messages.Ping):
                reports.send(progress.heartbeat)
            else:
                inbox.put(command)
    finally:
        inbox.put(None)
        time.sleep(grace_s)
        os._exit(1)


def _take_pipes() -> tuple[BinaryIO, ReportPipe]:
    """Keep the two pipes for messages; standard output becomes standard error, so that no print breaks a frame."""
    commands = os.fdopen(os.dup(0), "rb")
    reports = ReportPipe(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    return commands, reports
