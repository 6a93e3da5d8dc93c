"""Work in threads that nobody has to wait for."""

import asyncio
import subprocess
import sys
import threading

import pytest

from engine.errors import BundleError, EngineFailure
from server.models.loader import in_background


async def test_what_it_returns_and_raises() -> None:
    assert await in_background(lambda: 7) == 7

    def refuse() -> int:
        raise BundleError("no")

    with pytest.raises(BundleError, match=r"^no$"):
        await in_background(refuse)


async def test_a_bug_is_a_failure_and_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[type[BaseException]] = []
    is_printed = threading.Event()

    def hook(arguments: threading.ExceptHookArgs) -> None:
        printed.append(arguments.exc_type)
        is_printed.set()

    def broken() -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(threading, "excepthook", hook)
    with pytest.raises(EngineFailure, match="its loading broke off"):
        await in_background(broken)
    await asyncio.to_thread(is_printed.wait)
    assert printed == [ZeroDivisionError]


async def test_cancelled_it_drops_what_comes() -> None:
    may_end, has_ended = threading.Event(), threading.Event()

    def work() -> int:
        may_end.wait()
        has_ended.set()
        return 1

    working = asyncio.create_task(in_background(work))
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working])
    may_end.set()
    await asyncio.to_thread(has_ended.wait)
    assert working.cancelled()


def test_the_end_of_the_process_does_not_wait_for_it() -> None:
    code = (
        "import asyncio, threading\nfrom server.models.loader import in_background\n"
        "async def main():\n"
        "    asyncio.create_task(in_background(lambda: threading.Event().wait()))\n"
        "    await asyncio.sleep(0)\n"
        "asyncio.run(main())\nprint('over')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "over\n"
