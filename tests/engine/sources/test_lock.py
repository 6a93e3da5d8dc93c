"""The lock belongs to a living process: what its file holds, and how its owner ended, does not count."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from engine.sources.retention import exclusive

HOLDER = """
import sys
from pathlib import Path
from engine.sources.retention import exclusive
with exclusive(Path(sys.argv[1]), lambda: None):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the lock until its input ends, or it is killed."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "a.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
        process.kill()


def never() -> None:
    pytest.fail("waits for nobody")


@pytest.mark.parametrize("content", ["", "1", str(os.getpid()), "999999999", "no id"], ids=range(5))
def test_a_file_that_nobody_holds_is_no_lock(content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process ids are used again: in a restarted container ours is that of the one that died."""
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waits for nobody"))
    lock = tmp_path / "a.lock"
    lock.write_text(content)
    with exclusive(lock, never):
        assert lock.exists()
    assert not lock.exists()


def test_the_lock_of_a_killed_process_is_free(holder: "subprocess.Popen[str]", tmp_path: Path) -> None:
    """Waiting is told once, and ends with the owner."""
    told = []

    def on_wait() -> None:
        told.append(holder.poll())
        holder.kill()

    with exclusive(tmp_path / "a.lock", on_wait):
        assert told == [None]
    assert list(tmp_path.iterdir()) == []


def test_it_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyError), exclusive(tmp_path / "a.lock", never):
        raise KeyError
    with exclusive(tmp_path / "a.lock", never):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_an_os_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(OSError) as caught, exclusive(tmp_path / "a.lock", never):
        pytest.fail("never entered")
    assert caught.value.errno == errno.ENOTSUP
