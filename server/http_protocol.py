"""uvicorn's h11 protocol with two additions: a time limit on request headers, and refusals in OpenAI's envelope."""

import asyncio
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from server.errors import WireError

MALFORMED = WireError(400, "The HTTP request is malformed, or its headers are too large.")
TOO_SLOW = WireError(408, "The request headers did not arrive in time.")


class BoundedProtocol(H11Protocol):
    """One connection. `header_timeout_s` runs from the connection, and from the first byte of each later request."""

    def __init__(self, header_timeout_s: float, **parts: Any) -> None:
        super().__init__(**parts)
        self._header_timeout_s = header_timeout_s
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client connected."""
        super().connection_made(transport)
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
        """What h11 cannot read is answered as every other error."""
        self._refuse(MALFORMED)

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
            ]
            for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body)):
                self.transport.write(self.conn.send(event) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()


def protocol_factory(header_timeout_s: float) -> type[asyncio.Protocol]:
    """What uvicorn takes as its `http` setting: it only ever calls it."""
    factory: Callable[..., BoundedProtocol] = partial(BoundedProtocol, header_timeout_s)
    return cast(type[asyncio.Protocol], factory)
