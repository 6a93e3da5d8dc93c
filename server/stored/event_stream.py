"""The events of a stored response as an event stream, from the beginning or from where a client was."""

from collections.abc import AsyncIterator, Callable, Sequence

from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from server.http.sse import COMMENT, HEADERS, frame
from server.stored.record import Json


class EventStream(EventSourceResponse):
    """An event stream that calls `left` when it ends, also when its client has gone or never read any of it."""

    def __init__(
        self, events: AsyncIterator[Sequence[Json]], keep_alive_s: float, left: Callable[[], None] | None = None
    ) -> None:
        self._left = left
        super().__init__(
            _frames(events), headers=HEADERS, ping=keep_alive_s, sep="\n", ping_message_factory=lambda: COMMENT
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._left is not None:
                self._left()


async def _frames(events: AsyncIterator[Sequence[Json]]) -> AsyncIterator[bytes]:
    async for batch in events:
        yield b"".join(map(frame, batch))
