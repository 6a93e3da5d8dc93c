"""One worker process: start it, write commands, read reports, know when it is gone, end it.

The worker runs in a process group
of its own, so Ctrl-C in the terminal reaches the server only, which then ends the worker in order.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from engine.config import EngineConfig
from engine.framing import FrameSplitter
from engine.messages import Command, Report, Shutdown, decode_report, frame
from engine.processes import child_environment, module_command, own_group

STDIN, STDOUT = 0, 1
GIVE_UP_S = 3.0  # after a kill: a process may wait in the kernel for its driver, where no signal reaches it
LAST_WORDS_S = 1.0  # how long a process may outlive one of its pipes, and a pipe its process

OnReport = Callable[["WorkerProcess", Report], None]


def worker_command(config: EngineConfig, label: str = "") -> list[str]:
    """The command line that starts a worker for `config`. label: the model's name in its log lines, '' = none."""
    return module_command("engine.worker", msgspec.json.encode(config).decode(), label)


def exit_text(code: int | None) -> str:
    """How a process ended, in words; a negative code is a signal number (POSIX)."""
    if code is None:
        return "ended with an unknown status"
    if code < 0:
        return f"was killed by signal {-code}"
    return f"exited with status {code}" if code < 0x8000_0000 else f"crashed with status 0x{code:08X}"


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
        loop = asyncio.get_running_loop()
        _, worker = await loop.subprocess_exec(
            lambda: cls(on_report),
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env=child_environment(),
            **own_group(),
        )
        return worker

    @property
    def pid(self) -> int | None:
        """Process id, None once it is gone."""
        if self._transport is None or self._transport.get_returncode() is not None:
            return None
        return self._transport.get_pid()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of commands the worker has not read yet."""
        pipe = self._input()
        return pipe.get_write_buffer_size() if pipe is not None else 0

    def send(self, command: Command) -> None:
        """Write one command; nothing happens when the worker is already gone."""
        pipe = self._input()
        if pipe is not None and not pipe.is_closing():
            pipe.write(frame(command))

    async def stop(self, polite_s: float, terminate_s: float) -> None:
        """End the process: ask, close its input, then terminate, then kill. Returns when it is gone or given up."""
        self.send(Shutdown())
        pipe = self._input()
        if pipe is not None:
            pipe.close()
        for seconds, harder in ((polite_s, self.terminate), (terminate_s, self.kill)):
            if await self._gone_within(seconds):
                return
            harder()
        await asyncio.wait([self.ended])

    def terminate(self) -> None:
        """SIGTERM; on Windows the process ends at once."""
        self._signal(_terminate)

    def kill(self) -> None:
        """End the process and its children without their consent; one that survives it is given up."""
        if not self.ended.done():
            self._signal(_kill_group)
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
        if fd != STDOUT or self._broken is not None or self.ended.done():
            return
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

    def _signal(self, action: Callable[[asyncio.SubprocessTransport], None]) -> None:
        if self._transport is None or self.ended.done():
            return
        with contextlib.suppress(ProcessLookupError):  # it was faster
            action(self._transport)

    async def _gone_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait([self.ended], timeout=seconds)
        return bool(done)


def _terminate(transport: asyncio.SubprocessTransport) -> None:
    """Not by the transport's own way on POSIX: that may reap the process, and asyncio never learns how it ended."""
    if sys.platform == "win32":
        transport.terminate()
    elif transport.get_returncode() is None:
        os.kill(transport.get_pid(), signal.SIGTERM)


def _kill_group(transport: asyncio.SubprocessTransport) -> None:
    if sys.platform == "win32":
        transport.kill()
    elif transport.get_returncode() is None:  # otherwise the id may be another's by now
        os.killpg(transport.get_pid(), signal.SIGKILL)
