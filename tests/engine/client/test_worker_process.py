"""One process: broken streams, stubborn processes, and the difference between the platforms."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from engine.client.worker_process import WorkerProcess
from engine.messages import Ready, Report, Tokens, frame

READY = Ready("b", "CPU", 1, ())
GUARD_S = 30.0


async def run(program: str, *, reports: list[Report] | None = None) -> WorkerProcess:
    """Start `python -c program`; what it reports is appended to `reports`."""
    seen: list[Report] = reports if reports is not None else []
    return await WorkerProcess.start([sys.executable, "-c", program], lambda _, report: seen.append(report))


async def test_reports_written_before_the_end_are_all_delivered() -> None:
    reports: list[Report] = []
    data = frame(READY) * 500
    async with asyncio.timeout(GUARD_S):
        worker = await run(f"import sys; sys.stdout.buffer.write({frame(READY)!r} * 500); sys.exit(4)", reports=reports)
        assert await worker.ended == "exited with status 4"
    assert len(reports) == 500
    assert len(data) > 4096
    assert worker.pid is None
    await worker.stop(0.0, 0.0)


@pytest.mark.parametrize(
    "output",
    [b"\xff" * 64, b"\x03\x00\x00\x00abc", frame(Tokens((), None))[:-1] + b"\xc1"],  # type: ignore[arg-type]
)
async def test_a_broken_frame_ends_the_process_and_says_so(output: bytes) -> None:
    async with asyncio.timeout(GUARD_S):
        worker = await run(
            f"import sys, threading; sys.stdout.buffer.write({output!r}); sys.stdout.flush(); threading.Event().wait()"
        )
        assert (await worker.ended).startswith("sent a broken message")


async def test_output_that_breaks_off_is_told_apart() -> None:
    async with asyncio.timeout(GUARD_S):
        worker = await run(f"import sys; sys.stdout.buffer.write({frame(READY)[:-2]!r})")
        assert await worker.ended == "broke off in the middle of a message and exited with status 0"


async def test_a_process_without_output_is_ended() -> None:
    async with asyncio.timeout(GUARD_S):
        worker = await run("import os, threading; os.close(1); threading.Event().wait()")
        assert "killed" in await worker.ended or sys.platform == "win32"


class UnseenEnd:
    """Of a process that has ended, which the event loop does not know yet. Its own `terminate` would reap it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def get_pid(self) -> int:
        return self._pid

    def get_returncode(self) -> int | None:
        return None

    def terminate(self) -> None:
        pytest.fail("reaps the process")


@pytest.mark.skipif(sys.platform == "win32", reason="processes are reaped on POSIX")
async def test_a_signal_leaves_the_exit_status_to_the_event_loop() -> None:
    with subprocess.Popen([sys.executable, "-c", "import os; os._exit(7)"]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it is dead, and nobody has reaped it
        worker = WorkerProcess(lambda _, report: None)
        worker.connection_made(cast(asyncio.SubprocessTransport, UnseenEnd(child.pid)))
        worker.terminate()
    assert child.returncode == 7
    with subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"]) as child:
        worker.connection_made(cast(asyncio.SubprocessTransport, UnseenEnd(child.pid)))
        worker.terminate()
    assert child.returncode == -signal.SIGTERM


async def test_a_stubborn_process_is_killed() -> None:
    reports: list[Report] = []
    stubborn = (
        "import signal, sys, threading; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"sys.stdout.buffer.write({frame(READY)!r}); sys.stdout.flush();"
        "threading.Thread(target=threading.Event().wait).start()"
    )
    async with asyncio.timeout(GUARD_S):
        worker = await run(stubborn, reports=reports)
        await worker.stop(0.05, 0.05)
    assert worker.pid is None
    assert worker.ended.done()


async def test_a_grandchild_that_keeps_the_pipe_does_not_keep_us() -> None:
    # It inherits both pipes and lives until we close our end of its input.
    program = (
        "import os, subprocess, sys;"
        "subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()']); os._exit(9)"
    )
    async with asyncio.timeout(GUARD_S):
        worker = await run(program)
        assert await worker.ended == "exited with status 9"


CHILD = """
import os, signal, sys, threading
signal.alarm(60)
with open(sys.argv[1], "w") as fifo:
    print("there", flush=True)
    threading.Event().wait()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no process groups")
async def test_a_kill_ends_what_the_process_started(tmp_path: Path) -> None:
    fifo, begun = tmp_path / "fifo", asyncio.Event()
    os.mkfifo(fifo)
    program = (
        "import subprocess, sys, threading;"
        f"child = subprocess.Popen([sys.executable, '-c', {CHILD!r}, {str(fifo)!r}], stdout=subprocess.PIPE);"
        f"child.stdout.readline(); sys.stdout.buffer.write({frame(READY)!r}); sys.stdout.flush();"
        "threading.Event().wait()"
    )
    child_ends = asyncio.create_task(asyncio.to_thread(fifo.read_bytes))  # when the last writer is gone
    async with asyncio.timeout(GUARD_S):
        worker = await WorkerProcess.start([sys.executable, "-c", program], lambda *_: begun.set())
        await begun.wait()
        assert not child_ends.done()
        worker.kill()
        assert await worker.ended == "was killed by SIGKILL"
        assert await child_ends == b""


async def test_a_command_that_does_not_exist_is_an_os_error() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        await WorkerProcess.start(["/no-such-program"], lambda *_: None)
