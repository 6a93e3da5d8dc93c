"""The life of the server process: bind, load, serve, drain, end. SIGTERM (Ctrl-Break on Windows) and SIGHUP drain: new
requests hear 503, running ones get `drain_s` seconds. SIGINT (Ctrl-C) ends all at once, as does a second signal."""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from sse_starlette.sse import AppStatus
from starlette.types import ASGIApp

from engine.errors import BundleError, HexserveError
from server import signals
from server.http.connections import ACCEPTED_AT_ONCE, AcceptFailures, ConnectionLimits, DatedState, protocol_factory
from server.http.in_flight import InFlight
from server.logs import flush_logs
from server.middleware.auth import KeyRing
from server.middleware.checks import HEADER_BYTES
from server.models.models import Models
from server.observability.tracing import Layer
from server.settings import Settings, listed
from server.stored_responses.store import ResponseStore

if TYPE_CHECKING:
    from server.api.openai.response_runs import StoredResponses

_log = logging.getLogger("hexserve")
BACKLOG = 2048
ENDED, BROKEN, UNUSABLE = 0, 1, 2  # exit codes
# Longer than httpx (and so the OpenAI SDK) keeps an idle connection, 5 s: who closes first must not be the server.
IDLE_CONNECTION_S = 20
USUAL_LIMITS = ConnectionLimits()
LARGEST_MESSAGE = 4 * 1024 * 1024  # of a WebSocket: a minute of sound
CONNECTIONS_END_S = 1  # for clients to read the last frame once nothing generates any more


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; OSError when the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # asyncio sets TCP_NODELAY only on sockets that call themselves TCP; without it each answer waits 40 ms for an ACK.
    return socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, fileno=listener.detach())


def run(serving: Callable[[], Coroutine[None, None, int]]) -> int:
    """What `serve` returns, with is_last. serving: calls it on the event loop."""

    async def once() -> int:
        code = await serving()
        signals.end_with(code)  # asyncio still waits for its threads, which may be at work for long
        return code

    code = asyncio.run(once())
    signals.ignore()
    return code


async def serve(
    settings: Settings,
    keys: KeyRing,
    models: Models,
    listener: socket.socket,
    store: ResponseStore | None = None,
    layers: Sequence[Layer] = (),
    limits: ConnectionLimits = USUAL_LIMITS,
    is_last: bool = False,
) -> int:
    """Serve until a signal says to end; the exit code (0 ended as asked, 1 engine failure, 2 unusable bundle). is_last:
    the process ends afterwards, and signals are ours until its end."""
    asyncio.get_running_loop().set_exception_handler(AcceptFailures())
    AppStatus.enable_automatic_graceful_drain = False  # otherwise the first signal would cut every stream
    in_flight = InFlight()
    server = DrainingServer(in_flight, settings, limits)
    with signals.handled((signal.SIGINT, *signals.stop_signals()), server.handle_exit, restores=not is_last):
        loading = asyncio.create_task(models.start())
        create_app, stored_in = await asyncio.to_thread(_app_parts)
        stored = None if store is None else stored_in(store)
        server.config.app = create_app(settings, models, keys, in_flight, stored, layers)
        try:
            return await _until_ended(server, models, loading, listener)
        finally:
            if stored is not None:
                await stored.settle()


def _app_parts() -> "tuple[Callable[..., ASGIApp], type[StoredResponses]]":
    """Half a second of imports, while workers start."""
    from server.api.openai.response_runs import StoredResponses  # noqa: PLC0415
    from server.app import create_app  # noqa: PLC0415

    return create_app, StoredResponses


async def _until_ended(
    server: "DrainingServer", models: Models, loading: asyncio.Task[None], listener: socket.socket
) -> int:
    serving = asyncio.create_task(server.serve([listener]))
    ending = asyncio.create_task(server.ending.wait())
    failure: BaseException | None = None
    try:
        await asyncio.wait((serving, loading, ending), return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            failure = loading.exception()
        if failure is None and loading.done() and not server.ending.is_set():  # else the listener may be closed
            _log.info("serving %s on http://%s", ", ".join(model.name for model in models.models), _address(listener))
            await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
    finally:
        loading.cancel()
        ending.cancel()
        server.end()
        await asyncio.gather(models.close(), serving, asyncio.wait([loading]))
    return _exit_code(failure)


def _exit_code(failure: BaseException | None) -> int:
    if failure is None:
        return ENDED
    if not isinstance(failure, HexserveError):
        raise failure
    flush_logs()
    print(f"error: {failure}", file=sys.stderr)
    return UNUSABLE if isinstance(failure, BundleError) else BROKEN


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class DrainingServer(uvicorn.Server):
    """uvicorn that drains before it stops listening. `config.app` is set later: signals are heeded before."""

    def __init__(self, in_flight: InFlight, settings: Settings, limits: ConnectionLimits = USUAL_LIMITS) -> None:
        config = uvicorn.Config(
            "",
            http=protocol_factory(limits),
            h11_max_incomplete_event_size=HEADER_BYTES,
            proxy_headers=bool(settings.trusted_proxies),
            forwarded_allow_ips=list(listed(settings.trusted_proxies)),
            lifespan="off",
            ws="wsproto",
            ws_max_size=LARGEST_MESSAGE,
            ws_per_message_deflate=False,  # a small message may unpack to a large one
            ws_ping_timeout=None,  # who sends sound faster than it is written is not read for a while
            access_log=False,
            server_header=False,
            log_config=None,
            backlog=ACCEPTED_AT_ONCE,
            timeout_graceful_shutdown=CONNECTIONS_END_S,
            timeout_keep_alive=IDLE_CONNECTION_S,
        )
        super().__init__(config)
        self.server_state = DatedState()
        self.ending = asyncio.Event()
        self._in_flight = in_flight
        self._drain_s = settings.drain_s
        self._loop = asyncio.get_running_loop()
        self._draining: asyncio.Task[None] | None = None

    async def main_loop(self) -> None:
        """Not uvicorn's, which wakes ten times a second: to look whether it is to end, and for the header Date."""
        await self.ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Not uvicorn's to do: signals have to be heeded until the engine has ended too."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Called by Python between two instructions of the main thread: only wakes the loop."""
        self._loop.call_soon_threadsafe(self._obey, sig)

    def end(self) -> None:
        """Stop listening and end every request now; may be repeated."""
        self._in_flight.end()
        self.should_exit = True
        self.ending.set()

    def _obey(self, sig: int) -> None:
        if self._draining is not None or self.should_exit:
            self.force_exit = True
            self.end()
        elif sig == signal.SIGINT:
            self.end()
        else:
            self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        self._in_flight.draining = True
        _log.info("draining: %d requests have up to %g s to finish", self._in_flight.count, self._drain_s)
        if not await self._in_flight.wait_empty(self._drain_s):
            _log.warning("ending %d requests that did not finish in time", self._in_flight.count)
        self.end()
