"""uvicorn's h11 protocol and what it lacks: limits on time and number of connections, refusals as OpenAI's."""

import asyncio
import contextlib
import logging
import sys
import uuid
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from typing import Any, cast

import h11
import msgspec
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from server.http.errors import WireError, openai_body

_log = logging.getLogger("hexserve")
# Connections that one round of the event loop accepts: each has a descriptor until it has been refused.
ACCEPTED_AT_ONCE = 8
OWN_FILES = 96  # the worker's pipes, files that are read, connections that are about to be refused
LEAST_CONNECTIONS = 8
MOST_CONNECTIONS = 960
MACOS_OPEN_FILES = 10240  # OPEN_MAX: there the hard limit may be "unlimited", which setrlimit refuses
MALFORMED = WireError(400, "The HTTP request is malformed.")
TOO_LARGE = WireError(431, "The request line and headers are too large.")
UNKNOWN_TRANSFER = WireError(501, "The only Transfer-Encoding taken is chunked.")
TOO_MANY = WireError(503, "The server has too many connections.", "server_error", headers=(("Retry-After", "5"),))
TOO_SLOW = WireError(408, "The request headers did not arrive in time.")
CLOSE = (b"connection", b"close")
AMBIGUOUS = frozenset({b"content-length", b"transfer-encoding"})
FIRST_PROBE_S, LONGEST_PROBE_S = 0.05, 5.0
EVENT_STREAM = b"text/event-stream"
COMMENT = b": \n\n"  # nothing, in an event stream
REALTIME_PATH = "/v1/realtime"  # the only one that WebSockets are opened on


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """most: open connections; more are answered 503 and closed. header_timeout_s: from the connection, and from the
    first byte of each later request; then 408."""

    most: int = MOST_CONNECTIONS
    header_timeout_s: float = 10.0


def raise_limit() -> int:
    """Raise the soft limit on open files to the hard one; the limit that holds then, 0 = none."""
    if sys.platform == "win32":
        return 0
    import resource  # noqa: PLC0415 (Windows has none)

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, MACOS_OPEN_FILES):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
            break
    return 0 if soft == resource.RLIM_INFINITY else soft


def bounded_connections(pipes: int) -> ConnectionLimits:
    """Raise the limit on open files; the connections to allow, with a line in the log if they are fewer than usual.
    pipes: files that grammar compilers and template helpers need."""
    open_files = raise_limit()
    room = max(LEAST_CONNECTIONS, open_files - OWN_FILES - pipes) if open_files else MOST_CONNECTIONS
    if room >= MOST_CONNECTIONS:
        return ConnectionLimits()
    text = "at most %d connections instead of %d: this process may open %d files (ulimit -n)"
    _log.warning(text, room, MOST_CONNECTIONS, open_files)
    return ConnectionLimits(room)


class AcceptFailures:
    """asyncio's exception handler: when files run out all the same, one line says so, not a traceback each time."""

    def __init__(self) -> None:
        self._is_said = False

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if "socket" not in context or not isinstance(context.get("exception"), OSError):
            loop.default_exception_handler(context)
        elif not self._is_said:
            self._is_said = True
            _log.error("a connection could not be accepted, will try again: %s", context["exception"])


class DatedState(ServerState):
    """uvicorn's, whose headers of every answer have the date of the moment at which they are asked for."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"date", formatdate(usegmt=True).encode())]

    @default_headers.setter
    def default_headers(self, headers: list[tuple[bytes, bytes]]) -> None:
        """uvicorn begins with none."""


class BoundedProtocol(H11Protocol):
    """One connection. A client that closes its side after its request may wait for the answer or be gone: TCP tells
    only when something is sent to it. So it gets what means nothing, an interim response (102) or a comment, until the
    answer is complete."""

    def __init__(self, limits: ConnectionLimits, **parts: Any) -> None:
        super().__init__(**parts)
        self._limits = limits
        self._header_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._streams_events = False
        self._inner_app, self.app = self.app, self._noting_events

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > self._limits.most:
            self._refuse(TOO_MANY)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_headers()

    def handle_events(self) -> None:
        """As uvicorn's. RFC 9112, 6.1: with both framings the connection must be closed after the answer."""
        super().handle_events()
        if self.cycle is not None and {name for name, _ in self.headers} >= AMBIGUOUS and CLOSE not in self.headers:
            self.headers.append(CLOSE)  # the list that the request's scope has; its task has not begun

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's: true keeps our side open
        """The client closed its side; true while an answer is owed to it."""
        cycle = self.cycle
        knows_interim = self.conn.their_http_version != b"1.0"
        if cycle is None or cycle.response_complete or cycle.more_body or not knows_interim:
            return False
        if not self.conn.trailing_data[0]:
            cycle.keep_alive = False
        if self._probe_timer is None:
            self._probe(FIRST_PROBE_S)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._probe_timer is not None:
            self._probe_timer.cancel()
        super().connection_lost(exc)

    def _should_upgrade_to_ws(self) -> bool:
        return super()._should_upgrade_to_ws() and self.scope["path"] == REALTIME_PATH

    def send_400_response(self, msg: str) -> None:
        """What h11 cannot read is answered as every other error. Called where the error is being handled."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else MALFORMED.status
        self._refuse({431: TOO_LARGE, 501: UNKNOWN_TRANSFER}.get(hint, MALFORMED))

    def _probe(self, next_s: float) -> None:
        """Send what means nothing, unless bytes that were sent are still on their way."""
        self._probe_timer = None
        if self.transport.is_closing() or self.cycle.response_complete:
            return
        if not self.transport.get_write_buffer_size():
            if self.conn.our_state is h11.SEND_RESPONSE:
                self.transport.write(self.conn.send(h11.InformationalResponse(status_code=102, headers=[])) or b"")
            elif self._streams_events and self.conn.our_state is h11.SEND_BODY:
                self.transport.write(self.conn.send(h11.Data(data=COMMENT)) or b"")
        self._probe_timer = self.loop.call_later(next_s, self._probe, min(2 * next_s, LONGEST_PROBE_S))

    async def _noting_events(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                kinds = [value for name, value in message.get("headers", []) if name.lower() == b"content-type"]
                self._streams_events = any(kind.startswith(EVENT_STREAM) for kind in kinds)
            await send(message)

        await self._inner_app(scope, receive, noting)

    def _watch_headers(self) -> None:
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self._limits.header_timeout_s, self._refuse, TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, error: WireError) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(openai_body(error))
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("x-request-id", f"req_{uuid.uuid4().hex}"),
                ("connection", "close"),
                *error.headers,
            ]
            for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def protocol_factory(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """What uvicorn takes as its `http` setting: it only ever calls it."""
    return cast(type[asyncio.Protocol], partial(BoundedProtocol, limits))
