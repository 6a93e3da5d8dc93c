"""A server of our own is waited for, and never left behind."""

import os
import signal
import subprocess
import sys
import textwrap

import httpx
import pytest

from engine.processes import own_group
from server.commands.own_server import (
    ServerFailed,
    free_port,
    running_child,
    serve_command,
    stop,
    stop_signal,
)

READY_SERVER = """
import sys
import uvicorn
from tests.server.commands.scripted_server import Script, scripted_app
uvicorn.run(scripted_app(Script()), port=int(sys.argv[1]), log_level="critical")
"""


def is_up(address: str) -> bool:
    try:
        return httpx.get(f"{address}/health/live").status_code == 200
    except httpx.TransportError:
        return False


def test_ready_inside_and_gone_after() -> None:
    port = free_port()
    with running_child([sys.executable, "-c", READY_SERVER, str(port)], port) as child:
        assert child.address == f"http://127.0.0.1:{port}"
        assert is_up(child.address)
    assert not is_up(child.address)


def test_a_server_that_cannot_start_says_why() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no such bundle: x')"]
    with pytest.raises(ServerFailed, match=r"(?s)status 1.*no such bundle: x"), running_child(command, free_port()):
        raise AssertionError("must not be reached")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and groups")
def test_a_child_that_ignores_signals_is_killed_with_its_children() -> None:
    stubborn = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.fork()
        sys.stdout.write("x")
        sys.stdout.flush()
        time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(stubborn)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, **own_group()) as child:
        assert child.stdout is not None
        assert child.stdout.read(2) == b"xx"
        stop(child, patience_s=0.1)
        assert child.returncode == -signal.SIGKILL
        assert child.stdout.read() == b""  # the fork held the pipe open


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_sigterm_of_the_parent_ends_the_server() -> None:
    port = free_port()
    parent_code = f"""
        import sys, time
        from server.commands.own_server import running_child
        with running_child([sys.executable, "-c", {READY_SERVER!r}, "{port}"], {port}) as child:
            print(child.address, flush=True)
            time.sleep(600)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(parent_code)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        assert is_up(address)
        parent.terminate()
        assert parent.wait(30) == 128 + signal.SIGTERM
    assert not is_up(address)


def test_both_platforms() -> None:
    assert stop_signal("linux") == signal.SIGTERM
    assert stop_signal("win32") == getattr(signal, "CTRL_BREAK_EVENT", 1)


def test_command_names_bundle_and_port() -> None:
    command = serve_command("demo", 1234)
    assert command[0] == sys.executable
    assert command[command.index("serve") + 1 :] == ["--bundle", "demo", "--host", "127.0.0.1", "--port", "1234"]
    assert os.path.isabs(command[0])  # noqa: PTH117
