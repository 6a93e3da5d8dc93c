"""The process that owns the graphs: receive, step, reply. Its argument is an EngineConfig as JSON.

Standard input carries commands, standard output reports (`engine/messages.py`). End of input means that the parent
is gone: the worker ends too. What native code prints goes to standard error.
"""

import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import BinaryIO

import msgspec

from engine.config import EngineConfig
from engine.errors import BundleError, PassFailed
from engine.logs.handler import DroppingHandler, standard_error
from engine.logs.names import worker_format
from engine.messages import (
    Abort,
    Command,
    Failed,
    Fatal,
    PassRecord,
    Ping,
    Report,
    Shutdown,
    Stats,
    Submit,
    Tokens,
    Watch,
    read_command,
)
from engine.qnn.environment import as_variables
from engine.qnn.failures import explain
from engine.worker.assembly import OpenRuntime, assemble, open_configured
from engine.worker.outbox import Outbox
from engine.worker.progress import Progress
from engine.worker.report_pipe import ReportPipe
from engine.worker.work_loop import StepReport, WorkLoop

log = logging.getLogger("hexserve.worker")

GRACE_S = 5.0
# How long a thread that writes keys may keep the loop from going on: Python's own 5 ms are a twentieth of a pass.
SWITCH_S = 0.0005


def main(arguments: list[str], open_runtime: OpenRuntime = open_configured) -> int:
    """Run until told to stop; exit code 0 after Shutdown or end of input, 3 when the bundle cannot be served."""
    commands, reports = _take_pipes()
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_S)
    config = msgspec.json.decode(arguments[0], type=EngineConfig)
    label = arguments[1] if len(arguments) > 1 else ""
    os.environ.update(as_variables(config))
    logging.basicConfig(
        level=config.log_level.upper(),
        format=worker_format(label),
        handlers=[DroppingHandler(standard_error())],
    )
    inbox: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
    progress = Progress()
    grace_s = max(GRACE_S, config.save_s)
    receiving = (commands, inbox, reports, progress, grace_s)
    threading.Thread(target=_receive, args=receiving, name="commands", daemon=True).start()
    try:
        assembled = assemble(config, open_runtime)
    except BundleError as error:
        reports.send(Fatal(str(error), permanent=True))
        return 3
    except MemoryError as error:
        reports.send(Fatal(f"not enough memory for the pools and graphs: {error}", permanent=True))
        return 3
    except PassFailed as error:  # while the shapes are timed; an NPU that is being restarted may run them later
        reports.send(Fatal("; ".join(filter(None, (str(error), explain(str(error))))), permanent=False))
        return 3
    reports.send(assembled.ready)
    try:
        serve(assembled.loop, inbox, reports, progress)
        assembled.loop.finish_writes()
        if assembled.kv_file is not None:
            assembled.kv_file.save()
    finally:
        assembled.loop.close()
        assembled.runtime.close()
    return 0


def serve(loop: WorkLoop, inbox: "queue.SimpleQueue[Command | None]", reports: ReportPipe, progress: Progress) -> None:
    """Alternate between commands and passes until Shutdown or end of input."""
    outbox = Outbox(reports)
    try:
        while True:
            is_idle = not loop.has_work
            if is_idle:
                progress.rest()
            for command in _pending(inbox, block=is_idle):
                if is_idle:
                    progress.begin(0.0)
                if command is None or isinstance(command, Shutdown):
                    return
                outbox.flush()
                _obey(loop, command, reports)
            if not loop.has_work:
                continue
            report = loop.step(progress.begin, outbox.release)
            if report.events or report.failures:
                outbox.hold(partial(_told, report, loop.stats()))
                loop.stages.mark("send")
            if report.record is not None:
                outbox.hold(partial(_recorded, report.record))
            if not loop.has_work:
                outbox.flush()
                _check(loop)
    finally:
        outbox.close()


def _told(report: StepReport, stats: Stats) -> list[Report]:
    return [*report.failures, Tokens(report.events, stats)]


def _recorded(record: PassRecord) -> list[Report]:
    return [record]


def _obey(loop: WorkLoop, command: Command, reports: ReportPipe) -> None:
    if isinstance(command, Submit):
        request = command.request
        seed = request.params.seed if request.params.seed is not None else int.from_bytes(os.urandom(7))
        try:
            loop.add(request, command.emitted, seed, time.monotonic())
        except ValueError as error:
            reports.send(Failed(request.id, str(error), "invalid"))
    elif isinstance(command, Abort):
        loop.abort(command.id)
        if not loop.has_work:
            reports.send(Tokens((), loop.stats()))
    elif isinstance(command, Watch):
        loop.watch(command.is_on)


def _pending(inbox: "queue.SimpleQueue[Command | None]", block: bool) -> Iterator[Command | None]:
    """Every command that has arrived; waits for the first one when there is nothing else to do."""
    if block:
        yield inbox.get()
    while not inbox.empty():
        yield inbox.get()


def _check(loop: WorkLoop) -> None:
    """Check what must hold while nothing runs."""
    for violation in loop.violations():
        log.error("invariant broken: %s", violation)


def _receive(
    commands: BinaryIO,
    inbox: "queue.SimpleQueue[Command | None]",
    reports: ReportPipe,
    progress: Progress,
    grace_s: float,
) -> None:
    """Thread: answer pings and hand on the other commands until end of input.

    Then it makes sure that the process ends even inside a stuck pass.
    """
    try:
        while (command := read_command(commands)) is not None:
            if isinstance(command, Ping):
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
