"""The server as a process: signals at every stage, also as process 1, few files, a log that nobody reads, one cache."""

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import takewhile
from pathlib import Path

import httpx
import psutil
import pytest

from tests.live import READY, serving, watching
from tests.server.test_signals import AS_FIRST_PROCESS, has_namespaces

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
ROOT = Path(__file__).parents[3]
PATIENCE_S = 60
PIPE_BYTES = 65_536
COMMAND = [sys.executable, "-m", "server", "serve", "--port", "0"]


@contextmanager
def started(command: list[str]) -> Iterator["subprocess.Popen[str]"]:
    """A command whose standard error is a pipe that is read as far as the test reads it."""
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def read_until(process: "subprocess.Popen[str]", part: str) -> str:
    """Read lines until one that has `part`."""
    assert process.stderr is not None
    for line in process.stderr:
        if part in line:
            return line
    raise AssertionError(f"it ended without {part!r}")


def test_as_process_1_it_drains_and_ends() -> None:
    if not has_namespaces():
        pytest.skip("no namespaces of process ids for us here")
    with started([*AS_FIRST_PROCESS, *COMMAND]) as outer:
        read_until(outer, "serving demo")
        (first,) = psutil.Process(outer.pid).children()
        first.send_signal(signal.SIGTERM)
        assert outer.wait(PATIENCE_S) == 0


def test_as_process_1_it_ends_as_soon_as_it_hears() -> None:
    """The first instant in which a signal has a handler, as the system knows it."""
    if not has_namespaces():
        pytest.skip("no namespaces of process ids for us here")
    with started([*AS_FIRST_PROCESS, *COMMAND]) as outer:
        while not (children := psutil.Process(outer.pid).children()):
            pass
        status = Path(f"/proc/{children[0].pid}/status")
        while not caught(status) >> (signal.SIGTERM - 1) & 1:
            pass
        children[0].send_signal(signal.SIGTERM)
        assert outer.wait(PATIENCE_S) == 128 + signal.SIGTERM


def caught(status: Path) -> int:
    """The mask of signals that have a handler."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("SigCgt:"))
    return int(line.split()[1], 16)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_while_the_checkpoint_is_compiled_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    with started([*COMMAND, "--cache-dir", str(tmp_path)]) as process:
        read_until(process, "text")  # the compiler's first stage is done, its draft lies in the cache
        (compiler,) = psutil.Process(process.pid).children()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 128 + number
        assert not compiler.is_running()
        assert list(tmp_path.iterdir()) == []


def test_a_compiler_whose_server_is_killed_ends_and_leaves_nothing(tmp_path: Path) -> None:
    with started([*COMMAND, "--cache-dir", str(tmp_path)]) as process:
        read_until(process, "text")  # the compiler's first stage is done, its draft lies in the cache
        (compiler,) = psutil.Process(process.pid).children()
        assert [path for path in tmp_path.iterdir() if path.is_dir()]
        process.kill()
        compiler.wait(PATIENCE_S)
        assert [path for path in tmp_path.iterdir() if path.is_dir()] == []


def test_signals_at_random_moments_end_it_in_order(tmp_path: Path) -> None:
    """A moment is a number of lines of the start; whatever comes after it is where the signal hits."""
    moments, command = random.Random(7), [*COMMAND, "--cache-dir", str(tmp_path), "--log-level", "debug"]
    with serving("--cache-dir", str(tmp_path)):
        pass  # compiled: what starts from now on writes the same lines
    with started(command) as process:
        assert process.stderr is not None
        lines = 1 + sum(1 for _ in takewhile(lambda line: "serving demo" not in line, process.stderr))
        process.terminate()
        process.communicate(timeout=PATIENCE_S)
    for _ in range(8):
        with started(command) as process:
            assert process.stderr is not None
            for _ in range(moments.randint(1, lines)):  # before the first line it is Python that ends, with 1
                process.stderr.readline()
            children = psutil.Process(process.pid).children()
            number = moments.choice([signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
            process.send_signal(number)
            _, rest = process.communicate(timeout=PATIENCE_S)
            assert process.returncode in (0, 128 + number, -number), rest  # -number: before Python runs a line of ours
            assert "Traceback" not in rest
            assert psutil.wait_procs(children, timeout=PATIENCE_S)[1] == []


def test_a_log_that_nobody_reads_stops_nobody(tmp_path: Path) -> None:
    with started(COMMAND) as process:
        assert process.stderr is not None
        found = READY.search(read_until(process, "serving demo"))
        assert found is not None
        with httpx.Client(base_url=found[1], timeout=PATIENCE_S) as client:
            for _ in range(PIPE_BYTES // 40):  # a line has more than 60 bytes
                assert client.get("/health/live").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0


async def test_more_connections_than_files_are_refused_without_a_traceback() -> None:
    few_files = ["sh", "-c", 'ulimit -S -n 256; ulimit -H -n 256; exec "$@"', "sh"]
    command = [*few_files, sys.executable, "-m", "server", "serve", "--port", "0"]
    with watching(command, dict(os.environ), ROOT) as server:
        host, port = httpx.URL(server.url).host, httpx.URL(server.url).port
        with ExitStack() as connections:
            for _ in range(300):
                connection = connections.enter_context(socket.create_connection((host, port), PATIENCE_S))
                connection.setblocking(False)
            refused = await asyncio.to_thread(answered_503, server.url)
        assert refused
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            while (await client.get("/health")).status_code == 503:  # the idle ones are still being closed
                pass
    lines = [line for line in server.lines if "hexserve.access" not in line]
    log = "\n".join(lines)
    assert "this process may open 256 files" in log
    assert "Traceback" not in log and "Too many open files" not in log
    assert len(lines) < 20


def answered_503(url: str) -> bool:
    """Whether one more connection is refused in HTTP."""
    return httpx.get(f"{url}/health", timeout=PATIENCE_S).status_code == 503


def test_two_servers_share_one_empty_cache(tmp_path: Path) -> None:
    with (
        started([*COMMAND, "--cache-dir", str(tmp_path)]) as one,
        started([*COMMAND, "--cache-dir", str(tmp_path)]) as two,
    ):
        for process in (one, two):
            read_until(process, "serving demo")
        assert len([path for path in tmp_path.iterdir() if path.name.startswith("demo-")]) == 1
        for process in (one, two):
            process.send_signal(signal.SIGHUP)
        assert [process.wait(PATIENCE_S) for process in (one, two)] == [0, 0]
