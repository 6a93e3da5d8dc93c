"""What a service manager is told of a service, and how one fails. Pure."""

import re
from dataclasses import dataclass
from pathlib import Path

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
    written = 5 + settings.engine.kv_file_mb / 50 if settings.engine.kv_file else 0.0
    return settings.drain_s + written + MARGIN_S
