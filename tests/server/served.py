"""The app behind its real protocol, in a thread with a loop of its own, for clients that block."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fastapi import FastAPI

from engine.config import EngineConfig
from server.http.connections import ConnectionLimits
from server.http.in_flight import InFlight
from server.middleware.auth import read_keys
from server.run import USUAL_LIMITS, DrainingServer, bind
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine


class Served:
    """A server in a thread: its address, its loop, and how many tasks and connections it has."""

    def __init__(
        self, limits: ConnectionLimits, make_engine: Callable[[], ScriptedEngine] | None, **options: object
    ) -> None:
        self.limits = limits
        self.make_engine = make_engine
        self.settings = Settings(EngineConfig("unused"), **options)  # type: ignore[arg-type]
        self.listener: socket.socket = bind("127.0.0.1", 0)
        self.port: int = self.listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.started = threading.Event()
        self.loop: asyncio.AbstractEventLoop
        self.engine: ScriptedEngine
        self.app: FastAPI
        self.server: DrainingServer
        self.in_flight: InFlight

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        make = self.make_engine or (lambda: ScriptedEngine(max_queued=self.settings.max_queued))
        self.engine = make()
        keys = read_keys(self.settings.api_keys, self.settings.api_key_file)
        self.in_flight = InFlight()
        self.app = create_app(self.settings, self.engine, keys, self.in_flight)
        self.server = DrainingServer(self.in_flight, self.settings, self.limits)
        self.server.config.app = self.app
        self.started.set()
        await self.server._serve([self.listener])

    def tasks(self) -> int:
        """Tasks of the server's loop, not counting the one that counts."""

        async def count() -> int:
            return len(asyncio.all_tasks()) - 1

        return asyncio.run_coroutine_threadsafe(count(), self.loop).result(10)


@contextmanager
def served(
    limits: ConnectionLimits = USUAL_LIMITS, make_engine: Callable[[], ScriptedEngine] | None = None, **options: object
) -> Iterator[Served]:
    """Run a server until the block ends."""
    server = Served(limits, make_engine, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    server.started.wait(10)
    try:
        yield server
    finally:
        server.loop.call_soon_threadsafe(server.server.end)
        thread.join(10)
        assert not thread.is_alive()
