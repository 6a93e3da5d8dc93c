"""uvicorn's h11 protocol with two additions: a time limit on request headers, and refusals in OpenAI's envelope."""

import asyncio
import sys
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.http.errors import WireError

MALFORMED = WireError(400, "The HTTP request is malformed.")
TOO_LARGE = WireError(431, "The request line and headers are too large.")
UNKNOWN_TRANSFER = WireError(501, "The only Transfer-Encoding taken is chunked.")
TOO_MANY = WireError(503, "The server has too many connections.", "server_error", headers=(("Retry-After", "5"),))
TOO_SLOW = WireError(408, "The request headers did not arrive in time.")


class BoundedProtocol(H11Protocol):
    """One connection. `header_timeout_s` runs from the connection, and from the first byte of each later request.

    max_connections: beyond it a new one is answered 503 and closed; 0 = no limit.
    """

    def __init__(self, header_timeout_s: float, max_connections: int, **parts: Any) -> None:
        super().__init__(**parts)
        self._max_connections = max_connections
        self._header_timeout_s = header_timeout_s
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client connected."""
        super().connection_made(transport)
        if self._max_connections and len(self.connections) > self._max_connections:
            self._refuse(TOO_MANY)
        self._watch_headers()

    def data_received(self, data: bytes) -> None:
        """Bytes came; the timer runs while they are not yet a whole request head."""
        super().data_received(data)
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What h11 cannot read is answered as every other error. Called where the error is being handled."""
        error = sys.exception()
        hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else MALFORMED.status
        self._refuse({431: TOO_LARGE, 501: UNKNOWN_TRANSFER}.get(hint, MALFORMED))

    def _watch_headers(self) -> None:
        is_incomplete = self.conn.their_state is h11.IDLE and not self.transport.is_closing()
        if not is_incomplete:
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(self._header_timeout_s, self._refuse, TOO_SLOW)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _refuse(self, error: WireError) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(error.body())
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("x-request-id", f"req_{uuid.uuid4().hex}"),
                ("connection", "close"),
                *error.headers,
            ]
            for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body)):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()


def protocol_factory(header_timeout_s: float, max_connections: int = 0) -> type[asyncio.Protocol]:
    """What uvicorn takes as its `http` setting: it only ever calls it."""
    factory: Callable[..., BoundedProtocol] = partial(BoundedProtocol, header_timeout_s, max_connections)
    return cast(type[asyncio.Protocol], factory)
