"""Compilations behind a running server: each once, and none outlives its owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from engine.sources.retention import LaterCompilations, exclusive_if_free

FOREVER = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def test_what_is_compiled_ends_with_its_owner_and_is_compiled_once(tmp_path: Path) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    with LaterCompilations() as first, LaterCompilations() as second:
        assert first.start(FOREVER, lock, log)
        assert not second.start(FOREVER, lock, log)
        assert second.wait() == []
    assert first.wait() == [0]
    with exclusive_if_free(lock) as is_free:
        assert is_free


def test_a_killed_owner_leaves_no_compiler(tmp_path: Path) -> None:
    """Its end is the end of the input that the compiler waits on, which then closes its messages."""
    lock, log = tmp_path / "lock", tmp_path / "log"
    os.mkfifo(log)
    child = [sys.executable, "-c", "import sys; sys.stdin.read(); print('ended')"]
    owner = f"""
import os, signal
from pathlib import Path
from engine.sources.retention import LaterCompilations
LaterCompilations().start({child!r}, Path({str(lock)!r}), Path({str(log)!r}))
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", owner]) as process:
        assert log.read_text() == "ended\n"
        assert process.wait() == -signal.SIGKILL
