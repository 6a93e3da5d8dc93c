"""A server of our own for the length of a bench or a chat: a child process on a free loopback port, always ended."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from engine.demo.location import SHIPPED
from engine.errors import BundleError
from engine.processes import child_environment, module_command, own_group
from engine.sources.resolve import cache_folder, resolve_bundle
from server import signals
from server.commands.exit_codes import CommandFailed
from server.settings import SettingsError, load_settings

START_S = 900.0  # the embedded model may have to be compiled first, on a slow machine
POLL_S = 0.1
DRAIN_S = 5.0
TAIL_BYTES = 4000
# Its only client is ours and shows no key; the environment wins over a settings file.
OPEN: Mapping[str, str] = {"HEXSERVE_API_KEYS": "", "HEXSERVE_API_KEY_FILE": ""}


def settings_cache() -> Path:
    """The cache of HEXSERVE_CACHE_DIR or of the settings file, else the default one. SettingsError, BundleError."""
    return cache_folder(load_settings({}, os.environ, None).cache_dir)


class ServerFailed(CommandFailed):
    """The server ended or stayed silent before it was ready; the message holds the end of its output."""


def serve_command(bundle: str, port: int) -> list[str]:
    return module_command("server", "serve", "--bundle", bundle, "--host", "127.0.0.1", "--port", str(port))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def running_server(bundle: str) -> Iterator[str]:
    """Start a server, wait until it is ready, yield its address, and end it. Raises ServerFailed. What `bundle` names
    is fetched and compiled before, where the user sees how far that is."""
    port = free_port()
    with running_child(serve_command(_prepared(bundle), port), port) as child:
        yield child.address


def _prepared(bundle: str) -> str:
    """What the server is started on. Shipped models are left to it: settings may lend them another model's shapes."""
    if bundle in SHIPPED:
        return bundle
    try:
        settings = load_settings({}, os.environ, None)
        return str(resolve_bundle(bundle, cache_folder(settings.cache_dir), lora=bool(settings.engine.lora)))
    except (BundleError, SettingsError) as error:
        raise ServerFailed(str(error)) from error


@dataclass(frozen=True, slots=True)
class OwnServer:
    address: str
    pid: int


@contextlib.contextmanager
def running_child(command: Sequence[str], port: int, ready_path: str = "health/ready") -> Iterator[OwnServer]:
    """The same by any command that serves on `port`; ready when `ready_path` answers 200. Raises ServerFailed."""
    address = f"http://127.0.0.1:{port}"
    is_main = threading.current_thread() is threading.main_thread()
    # SIGTERM, and a terminal that closes, unwind the stack instead of leaving the child behind.
    with tempfile.TemporaryFile() as log, signals.ending_in_order() if is_main else contextlib.nullcontext():
        none, errors = subprocess.DEVNULL, subprocess.STDOUT
        child = subprocess.Popen(
            command, stdin=none, stdout=log, stderr=errors, env=child_environment(OPEN), **own_group()
        )
        try:
            _wait_ready(child, f"{address}/{ready_path}", log)
            yield OwnServer(address, child.pid)
        finally:
            stop(child)


def stop_signal(platform: str) -> int:
    """What asks a server to end: Windows has no SIGTERM for others, but CTRL_BREAK_EVENT for a group."""
    return int(getattr(signal, "CTRL_BREAK_EVENT", 1)) if platform == "win32" else int(signal.SIGTERM)


def stop(child: "subprocess.Popen[bytes]", patience_s: float = DRAIN_S) -> None:
    """Ask the child to end, and kill what is left of its group after `patience_s` seconds."""
    if child.poll() is None:
        with contextlib.suppress(OSError):
            child.send_signal(stop_signal(sys.platform))
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(patience_s)
    if sys.platform != "win32":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    if child.poll() is None:
        child.kill()
    child.wait()


def _wait_ready(child: "subprocess.Popen[bytes]", ready_url: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_S
    with httpx.Client(trust_env=False, timeout=5.0) as client:
        while True:
            if child.poll() is not None:
                raise ServerFailed(f"the server ended with status {child.returncode}:\n{_tail(log)}")
            with contextlib.suppress(httpx.HTTPError):
                if client.get(ready_url).status_code == 200:
                    return
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server was not ready after {START_S:.0f} s:\n{_tail(log)}")
            time.sleep(POLL_S)


def _tail(log: IO[bytes]) -> str:
    log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
    return log.read().decode("utf-8", "replace").strip()
