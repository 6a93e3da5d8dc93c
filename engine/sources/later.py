"""Compilations that run while something else already serves, and whose bundles the next start finds."""

import os
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from engine.processes import child_environment
from engine.sources.retention import exclusive_if_free

NICENESS = 10  # of 20: requests come first


class LaterCompilations:
    """Owns its processes; the end of this one, however it comes, is theirs, as the input they wait on ends with it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, command: list[str], lock: Path, log: Path) -> bool:
        """Run a compilation; False where another process does. Its messages go to a file. OSError."""
        if not self._stack.enter_context(exclusive_if_free(lock)):
            return False
        its_input, ours = os.pipe()  # nobody writes
        with log.open("wb") as messages:
            process = subprocess.Popen(
                command, env=child_environment(), stdin=its_input, stdout=messages, stderr=messages
            )
        os.close(its_input)
        if sys.platform != "win32":
            with suppress(OSError):  # it may have ended already
                os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
        self._processes.append(process)
        self._stack.callback(process.wait)
        self._stack.callback(os.close, ours)
        return True

    def wait(self) -> list[int]:
        return [process.wait() for process in self._processes]

    def __enter__(self) -> "LaterCompilations":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
