"""How many connections the process's limit on open files has room for."""

import asyncio
import logging
import sys
from typing import Any

_log = logging.getLogger("hexserve")
# Connections that one round of the event loop accepts: each has a descriptor until it has been refused.
ACCEPTED_AT_ONCE = 8
OWN_FILES = 96  # the worker's pipes, files that are read, connections that are about to be refused
LEAST_CONNECTIONS = 8
MACOS_OPEN_FILES = 10240  # OPEN_MAX: there the hard limit may be "unlimited", which setrlimit refuses


def raise_limit() -> int:
    """Raise the soft limit on open files to the hard one; the limit that holds then, 0 = none."""
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 (Windows has none)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_OPEN_FILES):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            continue
        soft = wanted
        break
    return 0 if soft == resource.RLIM_INFINITY else soft


def connections_within(max_connections: int, open_files: int, pipes: int) -> int:
    """The connections to allow of `max_connections` (0 = all) with so many open files (0 = any number).

    pipes: files that grammar compilers and template helpers need.
    """
    if not open_files:
        return max_connections
    room = max(LEAST_CONNECTIONS, open_files - OWN_FILES - pipes)
    return min(max_connections or room, room)


def bound_connections(max_connections: int, pipes: int) -> int:
    """Raise the limit on open files; the connections to allow, with a line in the log if they are fewer than asked."""
    open_files = raise_limit()
    allowed = connections_within(max_connections, open_files, pipes)
    if allowed < max_connections:
        _log.warning(
            "max_connections is %d instead of %d: this process may open %d files (ulimit -n)",
            allowed,
            max_connections,
            open_files,
        )
    return allowed


class AcceptFailures:
    """asyncio's exception handler: when files run out all the same, one line says so, not a traceback each time."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log what a callback or a socket raised."""
        if "socket" not in context or not isinstance(context.get("exception"), OSError):
            loop.default_exception_handler(context)
        elif not self._is_said:
            self._is_said = True
            _log.error("a connection could not be accepted, will try again: %s", context["exception"])
