"""Signals at every moment before the server runs: they end the command, with one exit code, also as process 1."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server import signals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
ROOT = Path(__file__).parents[2]
AS_FIRST_PROCESS = ("unshare", "--user", "--map-root-user", "--pid", "--fork")
# A signal at the import of one module, as it may come in the first second.
SIGNALLED_IMPORT = """
import os, runpy, signal, sys
if {ignored!r}:
    signal.signal({ignored!r}, signal.SIG_IGN)

class Signals:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number!r})

sys.meta_path.insert(0, Signals())
sys.argv = ["hexserve", "inspect", "/nowhere"]
runpy.run_module("server", run_name="__main__")
"""
MODULES = ("server.commands", "typer", "server.settings", "engine.errors", "rich.console")


def has_namespaces() -> bool:
    """Whether a process can be made the first one of a namespace of its own, as in a container."""
    try:
        return subprocess.run([*AS_FIRST_PROCESS, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def command_ended(module: str, number: int, ignored: int = 0, prefix: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and standard error of a command that gets a signal at an import."""
    code = SIGNALLED_IMPORT.format(module=module, number=int(number), ignored=int(ignored))
    command = [*prefix, sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", MODULES)
def test_a_signal_while_modules_load_ends_the_command(module: str, number: int) -> None:
    assert command_ended(module, number) == (128 + number, "")


@pytest.mark.skipif(not has_namespaces(), reason="no namespaces of process ids for us here")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("module", MODULES)
def test_a_signal_to_process_1_while_modules_load_ends_it(module: str, number: int) -> None:
    assert command_ended(module, number, prefix=AS_FIRST_PROCESS) == (128 + number, "")


def test_what_nohup_ignores_stays_ignored() -> None:
    code, text = command_ended("typer", signal.SIGHUP, ignored=signal.SIGHUP)
    assert code == 2 and "/nowhere" in text  # as without a signal


@contextmanager
def restored() -> Iterator[None]:
    """The test process keeps its own handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_a_signal_unwinds_where_something_is_to_be_removed() -> None:
    removed = []
    with pytest.raises(SystemExit) as ended, signals.unwinding():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            removed.append("draft")
    assert (ended.value.code, removed) == (128 + signal.SIGTERM, ["draft"])


def test_handlers_come_back() -> None:
    heard: list[int] = []
    with restored():
        signal.signal(signal.SIGTERM, lambda number, _: heard.append(-number))
        with signals.handled([signal.SIGTERM], lambda number, _: heard.append(number)):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM, -signal.SIGTERM]


def test_sighup_counts_unless_it_was_ignored() -> None:
    with restored():
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert set(signals.stop_signals()) == {signal.SIGTERM, signal.SIGHUP}
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert signals.stop_signals() == (signal.SIGTERM,)
