"""A server with a thread that never ends. Says "ready" when signals are its to heed."""

import asyncio
import threading

from engine.config import EngineConfig
from server.middleware.auth import KeyRing
from server.run import bind, run, serve
from server.settings import Settings
from tests.server.one_model import one_model
from tests.server.scripted_engine import ScriptedEngine


class StuckEngine(ScriptedEngine):
    """An engine that asks a thread for what never comes."""

    async def start(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        print("ready", flush=True)

    async def close(self) -> None:
        """Nothing to end but the thread, which cannot be."""


if __name__ == "__main__":
    settings, listener = Settings(EngineConfig("unused")), bind("127.0.0.1", 0)
    raise SystemExit(
        run(lambda: serve(settings, KeyRing(), one_model(StuckEngine(), settings), listener, is_last=True))
    )
