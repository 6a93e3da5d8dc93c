"""Deltas -> frames of a stream. One event of SSE is `data: {json}` and an empty line; the last one is `data: [DONE]`.

A client that leaves closes the frame generator, whose `finally` aborts the stream: a plain call, because nothing
after an `await` there would run.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from engine.errors import HexserveError
from server.http.errors import from_engine
from server.http.merged_stream import ChoiceDelta, MergedStream
from server.http.resumption import comment

DONE = b"data: [DONE]\n\n"
COMMENT = ServerSentEvent(comment="keep-alive", sep="\n")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class ChunkWriter(Protocol):
    """Turns the deltas of one request into the chunks of its route, and counts tokens."""

    @property
    def finished(self) -> bool:
        """True when every choice has had its last chunk."""

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        """The chunks of these deltas, in order."""

    def last_chunks(self) -> list[dict[str, Any]]:
        """What follows when every choice has finished: the usage chunk, if it was asked for."""

    @property
    def events(self) -> int:
        """How many events there were so far, in a format that numbers them; else 0."""

    @property
    def ending(self) -> bytes:
        """Frames after the last chunk."""

    def failure(self, error: HexserveError) -> list[dict[str, Any]]:
        """The last chunks of a stream that cannot go on."""


class PlainEnding:
    """How chats and completions end."""

    ending = DONE
    events = 0

    def failure(self, error: HexserveError) -> list[dict[str, Any]]:
        """One error event."""
        return [from_engine(error).body()]


def frame(payload: dict[str, Any]) -> bytes:
    """One event; one that has a type is named after it."""
    kind = payload.get("type")
    name = b"" if kind is None else b"event: " + str(kind).encode() + b"\n"
    return name + b"data: " + msgspec.json.encode(payload) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """How chunks become bytes. idle: what is sent when nothing comes for long; "" = `keep_alive`, which SSE has.

    opens_early: the writer's chunks of no deltas go out at once when the first delta is late.
    notes_tokens: each piece ends in a comment that says which tokens it was, for a front.
    """

    media_type: str
    frame: Callable[[dict[str, Any]], bytes]
    idle: bytes = b""
    keep_alive: ServerSentEvent = COMMENT
    opens_early: bool = False
    notes_tokens: bool = False


EVENTS = Framing("text/event-stream", frame)


async def frames(
    stream: MergedStream,
    first: Sequence[ChoiceDelta],
    writer: ChunkWriter,
    framing: Framing = EVENTS,
    idle_s: float = 0.0,
) -> AsyncIterator[bytes]:
    """The whole stream. What has arrived together goes out in one piece; a failure is one last chunk.

    idle_s: how long to wait before the framing's `idle` is sent; 0 = it is never sent.
    """
    frame, deltas = framing.frame, first
    try:
        try:
            if not deltas and framing.opens_early:
                yield b"".join(frame(chunk) for chunk in writer.chunks([]))
            while not writer.finished:
                if deltas:
                    yield _piece(deltas, writer, framing)
                elif idle_s:
                    yield framing.idle
                deltas = [] if writer.finished else await deltas_within(stream, idle_s)
            yield b"".join([*(frame(chunk) for chunk in writer.last_chunks()), writer.ending])
        except HexserveError as error:
            yield b"".join(frame(chunk) for chunk in writer.failure(error))
    finally:
        stream.abort()


def _piece(deltas: Sequence[ChoiceDelta], writer: ChunkWriter, framing: Framing) -> bytes:
    """Frames of what the client has not got yet; the writer must see the rest too."""
    known = [each for each in deltas if each.delta.is_known]
    if known:
        writer.chunks(known)
    fresh = [each for each in deltas if not each.delta.is_known]
    chunks = b"".join(framing.frame(chunk) for chunk in writer.chunks(fresh)) if fresh else b""
    return chunks + comment(fresh, writer.events) if framing.notes_tokens and fresh else chunks


async def deltas_within(stream: MergedStream, seconds: float) -> list[ChoiceDelta]:
    """The deltas that have arrived, none when there is none for so long; 0 = wait for one."""
    try:
        return await asyncio.wait_for(stream.deltas(), seconds or None)
    except TimeoutError:
        return []


class StreamResponse(EventSourceResponse):
    """A stream that aborts what it streams also when it never got to its first frame."""

    def __init__(
        self,
        stream: MergedStream,
        first: Sequence[ChoiceDelta],
        writer: ChunkWriter,
        keep_alive_s: float,
        framing: Framing = EVENTS,
    ) -> None:
        self._stream = stream
        super().__init__(
            frames(stream, first, writer, framing, keep_alive_s if framing.idle else 0.0),
            headers=HEADERS,
            media_type=framing.media_type,
            ping=0 if framing.idle else keep_alive_s,
            sep="\n",
            ping_message_factory=lambda: framing.keep_alive,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.abort()
