"""The bounds that a helper sets itself, in processes made for the purpose."""

import signal
import subprocess
import sys

import pytest

from engine.processes import child_environment

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a bound on address space")
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no alarm")


def run(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", code]
    return subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=60, check=False)


@LINUX
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("-1, -1", "(1 << 30, -1)"),
        ("1 << 29, 1 << 29", "(1 << 29, 1 << 29)"),
        ("1 << 29, -1", "(1 << 29, -1)"),
        ("1 << 31, 1 << 31", "(1 << 30, 1 << 31)"),
    ],
)
def test_memory_is_bounded_within_what_is_allowed(before: str, after: str) -> None:
    done = run(
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({before}))\n"
        "from engine.isolation.framing import bound_memory; bound_memory(1 << 30)\n"
        f"assert resource.getrlimit(resource.RLIMIT_AS) == {after}"
    )
    assert done.returncode == 0, done.stderr


@POSIX
def test_time_is_bounded_also_where_python_ignores_signals() -> None:
    done = run(
        "import signal; signal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\n"
        "from engine.isolation.framing import ending_after\n"
        "with ending_after(0.05): 10 ** 10 ** 9"
    )
    assert done.returncode == -signal.SIGALRM, done.stderr


@POSIX
def test_what_ends_in_time_is_not_ended_later() -> None:
    done = run(
        "import signal\nfrom engine.isolation.framing import ending_after\n"
        "with ending_after(60): pass\nassert signal.getitimer(signal.ITIMER_REAL) == (0, 0)"
    )
    assert done.returncode == 0, done.stderr


def test_what_is_printed_breaks_no_frame() -> None:
    done = run("from engine.isolation.framing import HelperFrames\nf = HelperFrames(); print('noise'); f.write(b'a')")
    assert done.stdout == "\1\0\0\0a" and "noise" in done.stderr


@pytest.mark.parametrize("name", ["text.renderer", "grammar.compiler", "speech.audio_helper", "vision.pictures"])
def test_a_helper_loads_no_event_loop(name: str) -> None:
    done = run(f"import sys, engine.{name}; sys.exit('asyncio' in sys.modules)")
    assert done.returncode == 0, done.stderr
