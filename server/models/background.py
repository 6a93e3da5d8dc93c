"""Work that blocks and may take minutes, in a thread that the end of the process does not wait for."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from engine.errors import EngineFailure, HexserveError


async def in_background(work: Callable[[], int]) -> int:
    """What `work` returns. Raises its HexserveError; any other exception is a bug, printed and told as EngineFailure.

    Cancelled, it returns at once and the thread goes on; what it comes to is dropped.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()

    def settle(outcome: int | HexserveError) -> None:
        if done.cancelled():
            return
        if isinstance(outcome, HexserveError):
            done.set_exception(outcome)
        else:
            done.set_result(outcome)

    def run() -> None:
        outcome: int | HexserveError = EngineFailure("its loading broke off; the log says where")
        try:
            outcome = work()
        except HexserveError as error:
            outcome = error
        finally:
            with suppress(RuntimeError):  # the loop has been closed meanwhile
                loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=run, name="hexserve-load", daemon=True).start()
    return await done
