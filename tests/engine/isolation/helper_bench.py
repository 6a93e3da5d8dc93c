"""What tests of pools of helper processes share: the pools they made, and what scripted helpers noted."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

GUARD_S = 120.0


class ClosedPool(Protocol):
    """A pool that can be closed."""

    async def close(self) -> None: ...


P = TypeVar("P", bound=ClosedPool)


class HelperBench(Generic[P]):
    """Pools over scripted helpers, which note their starts in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[P] = []

    @property
    def starts(self) -> list[int]:
        return [int(line) for line in (self.folder / "starts").read_text().split()]

    async def hanging(self) -> None:
        while not (self.folder / "hanging").exists():
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def guarded(self) -> AsyncIterator[None]:
        """Close all pools in the end; no process may be left."""
        async with asyncio.timeout(GUARD_S):
            yield
            for pool in self.made:
                await pool.close()
        if (self.folder / "starts").exists():
            assert not any(is_alive(pid) for pid in self.starts)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
