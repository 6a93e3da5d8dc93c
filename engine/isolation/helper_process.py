"""One helper process and its two pipes, as its parent holds it."""

import asyncio
import contextlib
import subprocess
from collections.abc import Sequence

from engine.framing import framed, next_frame
from engine.processes import child_environment, own_group

END_S = 3.0


class HelperProcess:
    """A process that answers every frame on its standard input with two: an empty one (taken) and the answer."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: Sequence[str]) -> "HelperProcess":
        """Start `command`; its errors go to ours. OSError when it cannot start."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None,
            env=child_environment(),
            **own_group(),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """Process id; also after its end."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True once its end was noticed."""
        return self._process.returncode is not None

    async def give(self, body: bytes) -> None:
        """Hand over a question; returns when it was taken. IncompleteReadError or OSError when the process ends before.

        ValueError when it writes no frame.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(framed(body))
        await self._process.stdin.drain()
        await self.answer()

    async def answer(self) -> bytes:
        """Its next frame; raises as `give`."""
        assert self._process.stdout is not None
        return await next_frame(self._process.stdout)

    async def last_status(self) -> int | None:
        """How a process ended whose output has ended; None when it does not end.

        Not killed first: before a signal `subprocess` looks whether it has ended, and then asyncio never learns how.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_S)
        return self._process.returncode

    async def end(self) -> int | None:
        """Kill it, for it has nothing to lose; its exit status, a negative signal number on POSIX.

        None when the kernel does not let go of it: then it is not waited for.
        """
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), END_S)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return self._process.returncode
