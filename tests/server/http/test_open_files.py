"""How many connections there are files for, and what is said when there are fewer than asked."""

import asyncio
import errno
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from server.http import connections
from server.http.connections import AcceptFailures, bounded_connections

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("files", "allowed"), [(0, 960), (4096, 960), (256, 152), (64, 8)])
def test_the_connections_that_there_are_files_for(monkeypatch: pytest.MonkeyPatch, files: int, allowed: int) -> None:
    monkeypatch.setattr(connections, "raise_limit", lambda: files)
    assert bounded_connections(8).most == allowed


def test_fewer_connections_than_asked_are_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connections, "raise_limit", lambda: 256)
    assert bounded_connections(8).most == 152
    assert [record.getMessage() for record in caplog.records] == [
        "at most 152 connections instead of 960: this process may open 256 files (ulimit -n)"
    ]
    caplog.clear()
    monkeypatch.setattr(connections, "raise_limit", lambda: 4096)
    assert (bounded_connections(8).most, caplog.records) == (960, [])


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_the_soft_limit_becomes_the_hard_one() -> None:
    code = "from server.http.connections import raise_limit; print(raise_limit())"
    command = ["sh", "-c", 'ulimit -S -n 64; ulimit -H -n 300; exec "$@"', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "300\n"


async def test_files_that_run_out_are_one_line(caplog: pytest.LogCaptureFixture) -> None:
    handler, loop = AcceptFailures(), asyncio.get_running_loop()
    for _ in range(3):
        handler(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files"), "socket": None})
    assert len(caplog.records) == 1 and "Too many open files" in caplog.text and caplog.records[0].exc_info is None


async def test_other_failures_keep_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    AcceptFailures()(asyncio.get_running_loop(), {"message": "it broke", "exception": ValueError("no")})
    assert caplog.records[0].levelno == logging.ERROR and caplog.records[0].exc_info is not None
