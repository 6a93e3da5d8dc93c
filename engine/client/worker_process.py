"""One worker process: start it, write commands, read reports, know when it is gone, end it. The worker runs in a
process group of its own, so Ctrl-C in the terminal reaches the server only, which then ends the worker in order."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from engine.config import EngineConfig
from engine.isolation.framing import FrameSplitter
from engine.messages import Command, Heartbeat, Report, Shutdown, decode_report, frame
from engine.processes import child_environment, exit_text, graph_memory, module_command, own_group

STEP_FACTOR = 20.0  # a step may take so many times what it should
UNKNOWN_FACTOR = 10.0  # nobody knows what the step should take: so many times the least bound
RELOAD_FACTOR, RELOAD_FLOOR_S = 10.0, 120.0  # a replacement's time to load, measured by its predecessors'
LONGEST_PERIOD_S = 3.0
PERIODS_PER_BOUND = 10
STDIN, STDOUT = 0, 1
GIVE_UP_S = 3.0  # after a kill: a process may wait in the kernel for its driver, where no signal reaches it
LAST_WORDS_S = 1.0  # how long a process may outlive one of its pipes, and a pipe its process
OnReport = Callable[["WorkerProcess", Report], None]


@dataclass(frozen=True, slots=True)
class HangBounds:
    """Seconds after which a worker counts as hung; 0 = never. step_s: without an answer, or in one step; a step that is
    expected to be long may take more. load_s: from its start until it is ready."""

    step_s: float = 30.0
    load_s: float = 1800.0

    @property
    def period_s(self) -> float:
        return min(LONGEST_PERIOD_S, self.step_s / PERIODS_PER_BOUND) if self.step_s else LONGEST_PERIOD_S

    def reload_s(self, slowest_load_s: float) -> float:
        """The bound on loading for a worker after one that took `slowest_load_s`: streams wait for this one."""
        return min(self.load_s, max(RELOAD_FLOOR_S, RELOAD_FACTOR * slowest_load_s))


USUAL_BOUNDS = HangBounds()


class Watchdog:
    """Watches one worker from its start. A step from one tick to the next counts for two periods at most: where this
    process was itself stopped, asleep or busy for longer, the worker could not be heard or was stopped as well."""

    def __init__(self, bounds: HangBounds, load_s: float, now_s: float) -> None:
        self._bounds = bounds
        self._load_bound_s = load_s
        self._then_s = now_s
        self._is_ready = False
        self._is_asked = False
        self._last = Heartbeat(False, 0, 0.0)
        self._silent_s = self._stuck_s = 0.0
        self.load_s = 0.0  # seconds it has loaded, or took to

    def ready(self) -> None:
        self._is_ready = True

    def heard(self, beat: Heartbeat) -> None:
        """It answered. Only a new step, or nothing to do, shows that the steps end."""
        if not beat.is_busy or beat.steps != self._last.steps:
            self._stuck_s = 0.0
        self._last = beat
        self._is_asked = False
        self._silent_s = 0.0

    def tick(self, now_s: float) -> str | None:
        """What is wrong with the worker at `now_s` (monotonic seconds), to be read after 'the worker'; None if well."""
        step_s = min(now_s - self._then_s, 2 * self._bounds.period_s)
        self._then_s = now_s
        if not self._is_ready:
            self.load_s += step_s
            return f"was not ready after {self._load_bound_s:g} s" if 0 < self._load_bound_s <= self.load_s else None
        if not self._bounds.step_s:
            return None
        self._silent_s += step_s if self._is_asked else 0.0
        self._stuck_s += step_s if self._last.is_busy else 0.0
        if self._silent_s >= self._bounds.step_s:
            return f"did not answer for {self._silent_s:.0f} s"
        least_s, expected_ms = self._bounds.step_s, self._last.expected_ms
        bound_s = max(least_s, STEP_FACTOR * expected_ms / 1000) if expected_ms else UNKNOWN_FACTOR * least_s
        return f"has been in one step for {self._stuck_s:.0f} s" if self._stuck_s >= bound_s else None

    def take_ping(self) -> bool:
        """True when a Ping is to be sent now: one at a time, so that a worker that does not read gathers none."""
        is_due = self._is_ready and bool(self._bounds.step_s) and not self._is_asked
        self._is_asked = self._is_asked or is_due
        return is_due


def worker_command(config: EngineConfig, label: str = "") -> list[str]:
    return module_command("engine.worker", msgspec.json.encode(config).decode(), label)


class WorkerProcess(asyncio.SubprocessProtocol):
    """A running worker. `on_report` is called on the event loop for each report, never after `ended` is set."""

    def __init__(self, on_report: OnReport) -> None:
        self._on_report = on_report
        self._splitter = FrameSplitter()
        self._transport: asyncio.SubprocessTransport | None = None
        self._broken: str | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def start(cls, command: Sequence[str], on_report: OnReport) -> "WorkerProcess":
        """Start `command` with pipes for input and output; its errors go to ours. OSError when it cannot start."""
        pipe, memory = subprocess.PIPE, graph_memory(os.environ)
        _, worker = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(on_report),
            *command,
            stdin=pipe,
            stdout=pipe,
            stderr=None,
            env=child_environment(memory),
            **own_group(),
        )
        return worker

    @property
    def pid(self) -> int | None:
        """Process id, None once it is gone."""
        transport = self._transport
        return transport.get_pid() if transport is not None and transport.get_returncode() is None else None

    @property
    def unsent_bytes(self) -> int:
        pipe = self._input()
        return pipe.get_write_buffer_size() if pipe is not None else 0

    def send(self, command: Command) -> None:
        pipe = self._input()
        if pipe is not None and not pipe.is_closing():
            pipe.write(frame(command))

    async def stop(self, polite_s: float, terminate_s: float) -> None:
        """End the process: ask, close its input, then terminate, then kill. Returns when it is gone or given up."""
        self.send(Shutdown())
        if (pipe := self._input()) is not None:
            pipe.close()
        for seconds, harder in ((polite_s, self.terminate), (terminate_s, self.kill)):
            if (await asyncio.wait([self.ended], timeout=seconds))[0]:
                return
            harder()
        await asyncio.wait([self.ended])

    def terminate(self) -> None:
        self._signal(is_last=False)

    def kill(self) -> None:
        """End the process and its children without their consent; one that survives it is given up."""
        if not self.ended.done():
            self._signal(is_last=True)
            self._later(self._give_up, GIVE_UP_S)

    def kill_hung(self, reason: str) -> None:
        """Kill the process; `reason` is how it then ended."""
        self._broken = self._broken or reason
        self.kill()

    def end_soon(self) -> None:
        """Kill the process unless it ends by itself within a moment."""
        self._later(self.kill, LAST_WORDS_S)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDOUT and self._broken is None and not self.ended.done():
            self._splitter.push(data)
            while (report := self._next_report()) is not None:
                self._on_report(self, report)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == STDOUT and self._splitter.pending_bytes and self._broken is None:
            self._broken = "broke off in the middle of a message"
        self.end_soon()  # a worker without pipes is of no use

    def process_exited(self) -> None:
        # Its output may still hold reports; but a grandchild that keeps the pipe open must not keep us waiting.
        assert self._transport is not None
        self._later(self._transport.close, LAST_WORDS_S)

    def connection_lost(self, exc: Exception | None) -> None:
        assert self._transport is not None
        code = self._transport.get_returncode()
        self._transport.close()
        self._end(exit_text(code))

    def _give_up(self) -> None:
        """It is in the kernel and ends when its driver's call returns; nobody shall wait for that."""
        if self._transport is not None and not self.ended.done():
            self._end("could not be killed: it waits in a call of its driver")
            self._transport.close()

    def _end(self, how: str) -> None:
        if not self.ended.done():
            self.ended.set_result(f"{self._broken} and {how}" if self._broken else how)

    def _next_report(self) -> Report | None:
        try:
            body = self._splitter.pop()
            return None if body is None else decode_report(body)
        except (ValueError, msgspec.MsgspecError) as error:
            self._broken = f"sent a broken message ({error})"
            self.kill()
            return None

    def _later(self, action: Callable[[], None], seconds: float) -> None:
        asyncio.get_running_loop().call_later(seconds, action)

    def _input(self) -> asyncio.WriteTransport | None:
        pipe = self._transport.get_pipe_transport(STDIN) if self._transport is not None else None
        return cast("asyncio.WriteTransport | None", pipe)

    def _signal(self, is_last: bool) -> None:
        """Not by the transport's own way on POSIX: that may reap the process, and asyncio never learns how it ended."""
        transport = self._transport
        if transport is None or self.ended.done() or transport.get_returncode() is not None:
            return  # the id may be another's by now
        with contextlib.suppress(ProcessLookupError):  # it was faster
            if sys.platform == "win32":
                (transport.kill if is_last else transport.terminate)()
            elif is_last:
                os.killpg(transport.get_pid(), signal.SIGKILL)
            else:
                os.kill(transport.get_pid(), signal.SIGTERM)
