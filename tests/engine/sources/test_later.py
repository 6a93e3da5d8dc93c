"""Compilations behind a running server: each once, and none outlives its owner."""

import importlib.util
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engine.sources.resolve import Wanted, compile_behind
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


def test_one_that_has_ended_can_be_started_again(tmp_path: Path) -> None:
    lock, log = tmp_path / "lock", tmp_path / "log"
    failing = [sys.executable, "-c", "raise SystemExit(1)"]
    with LaterCompilations() as later:
        assert later.start(failing, lock, log)
        assert later.wait() == [1]
        assert later.start(failing, lock, log)
        assert later.wait() == [1, 1]
    assert list(tmp_path.iterdir()) == [log]


def test_one_that_cannot_be_started_leaves_nothing(tmp_path: Path) -> None:
    with LaterCompilations() as later:
        with pytest.raises(FileNotFoundError):
            later.start([str(tmp_path / "nowhere")], tmp_path / "lock", tmp_path / "log")
        assert later.wait() == [] and not (tmp_path / "lock").exists()


def test_what_serves_already_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = Wanted(tmp_path, "m", tmp_path / "cache", "int4", lora=False)
    with LaterCompilations() as later:
        (tmp_path / "cache").write_text("no folder")
        compile_behind(wanted, later, "told")
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        compile_behind(replace(wanted, cache=tmp_path / "there"), later, "told")
        assert later.wait() == []
    unusable, missing = capsys.readouterr().err.splitlines()
    assert unusable.startswith("m: nothing is compiled behind this bundle: the bundle cache ")
    assert missing.startswith("m: nothing is compiled behind this bundle: ") and "hexserve[compile]" in missing


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
