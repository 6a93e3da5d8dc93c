"""What a service manager is told of a service, and how one fails. Pure."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.processes import child_environment
from server.settings import Settings

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MARGIN_S = 10.0  # over what the server itself takes to end


class ServiceError(Exception):
    """A service cannot be installed, removed or asked for; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class ServiceDefinition:
    """command: the program with its absolute path and arguments; folder: what relative paths in them start from.

    stop_s: how long it may take to end after it was told to.
    """

    name: str
    command: tuple[str, ...]
    folder: Path
    stop_s: float


@dataclass(frozen=True, slots=True)
class ServiceState:
    """What the service manager says of a service, in one line."""

    is_installed: bool
    is_running: bool
    text: str


def check_name(name: str) -> str:
    """The name, which becomes part of file names and command lines. Raises ServiceError."""
    if not NAME.fullmatch(name):
        raise ServiceError(f"'{name}' is no name for a service: letters, digits, - and _ only, at most 64")
    return name


def stop_seconds(settings: Settings) -> float:
    """How long a server of these settings may take to end: it drains, then its worker writes `kv_file`."""
    return settings.drain_s + settings.engine.save_s + MARGIN_S


TIMEOUT_S = 120.0  # starting a unit waits for the program to be executed, no longer


def run_tool(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a tool that is known to be there; output that is no text is replaced."""
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, -1, "", f"{words[0]} did not answer within {TIMEOUT_S:g} s")


def output_of(tool: Sequence[str], *words: str) -> str:
    """What a tool writes. Raises ServiceError with the last line that it complained with."""
    done = run_tool((*tool, *words))
    if done.returncode:
        lines = [line.strip() for line in (done.stderr.strip() or done.stdout.strip()).splitlines()]
        reason = lines[-1] if lines else f"it ended with status {done.returncode}"
        raise ServiceError(f"{' '.join(tool)} {words[0]} failed: {reason}")
    return done.stdout
