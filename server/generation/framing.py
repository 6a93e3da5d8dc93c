"""Deltas -> frames of a stream. One event of SSE is `data: {json}` and an empty line; the last one is `data: [DONE]`.

A client that leaves closes the frame generator, whose `finally` aborts the stream: a plain call, because nothing
after an `await` there would run. Some answers are blocks in a row, one of them open: Anthropic's messages, OpenAI's
responses.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import msgspec
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Receive, Scope, Send

from engine.errors import HexserveError
from engine.request import Delta
from server.generation.answers import TokenCount
from server.generation.call_reading import CallBegin
from server.generation.parsing import ParsedChoice, Part
from server.generation.stream import ChoiceDelta, MergedStream, comment
from server.http.errors import from_engine, openai_body
from server.http.fields import Answer

DONE = b"data: [DONE]\n\n"
COMMENT = ServerSentEvent(comment="keep-alive", sep="\n")
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
Deltas = Sequence[ChoiceDelta]


class AnswerWriter(ABC):
    """Makes of the deltas of one request the chunks of its route, or the whole answer, and counts tokens.
    ending: frames after the last chunk. events: how many there were so far, in a format that numbers them; else 0."""

    ending = b""
    events = 0
    count: TokenCount

    @property
    def finished(self) -> bool:
        return self.count.finished

    @abstractmethod
    def chunks(self, deltas: Deltas) -> list[Any]:
        """The chunks of these deltas, in order."""

    @abstractmethod
    def last_chunks(self) -> list[Any]:
        """What follows when every choice has finished: the usage chunk, if it was asked for."""

    @abstractmethod
    def failure(self, error: HexserveError) -> list[Any]:
        """The last chunks of a stream that cannot go on."""

    @abstractmethod
    def answer(self) -> Answer:
        """All that `chunks` was given, as the body of an answer that is not streamed."""


class PlainEnding(AnswerWriter):
    ending = DONE

    def failure(self, error: HexserveError) -> list[Any]:
        return [openai_body(from_engine(error))]


def frame(payload: Any) -> bytes:
    kind = payload.get("type") if isinstance(payload, dict) else getattr(payload, "type", None)
    name = b"" if kind is None else b"event: " + str(kind).encode() + b"\n"
    return name + b"data: " + msgspec.json.encode(payload) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Framing:
    """How chunks become bytes. idle: what is sent when nothing comes for long; "" = `keep_alive`, which SSE has.
    opens_early: the writer's chunks of no deltas go out at once when the first delta is late.
    notes_tokens: each piece ends in a comment that says which tokens it was, for a gateway."""

    media_type: str
    frame: Callable[[Any], bytes]
    idle: bytes = b""
    keep_alive: ServerSentEvent = COMMENT
    opens_early: bool = False
    notes_tokens: bool = False


EVENTS = Framing("text/event-stream", frame)


async def frames(
    stream: MergedStream, first: Deltas, writer: AnswerWriter, framing: Framing = EVENTS, idle_s: float = 0.0
) -> AsyncIterator[bytes]:
    """The whole stream; a failure is one last chunk. idle_s: the wait before the framing's `idle`, 0 = never."""
    deltas = first

    def framed(chunks: Sequence[Any]) -> bytes:
        return b"".join(map(framing.frame, chunks))

    try:
        try:
            if not deltas and framing.opens_early:
                yield framed(writer.chunks([]))
            while not writer.finished:
                if deltas:
                    yield _piece(deltas, writer, framing)
                elif idle_s:
                    yield framing.idle
                deltas = [] if writer.finished else await deltas_within(stream, idle_s)
            yield framed(writer.last_chunks()) + writer.ending
        except HexserveError as error:
            yield framed(writer.failure(error))
    finally:
        stream.abort()


def _piece(deltas: Deltas, writer: AnswerWriter, framing: Framing) -> bytes:
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


class EventStream(EventSourceResponse):
    """A stream that calls `ended` when it ends, also when its client has gone or never read any of it.
    keep_alive_s: how long it may be silent before the framing's `keep_alive` is sent; 0 = for ever."""

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        keep_alive_s: float,
        ended: Callable[[], None] = lambda: None,
        framing: Framing = EVENTS,
    ) -> None:
        self._ended = ended
        own: dict[str, Any] = {"headers": HEADERS, "media_type": framing.media_type, "sep": "\n"}
        super().__init__(pieces, **own, ping=keep_alive_s, ping_message_factory=lambda: framing.keep_alive)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._ended()


def line(payload: Any) -> bytes:
    return msgspec.json.encode(payload) + b"\n"


# Readers parse every line, so an empty one would be an error; white space in front of the next object is none.
LINES = Framing("application/x-ndjson", line, b" ")
PING = ServerSentEvent(event="ping", data='{"type":"ping"}', sep="\n")
PINGED_EVENTS = Framing("text/event-stream", frame, keep_alive=PING, opens_early=True)


Event = TypeVar("Event")


class Block(ABC, Generic[Event]):
    """One block that is being built, at its place in the answer. grows_by: the kind of part that goes on in it."""

    grows_by: type[Part] = str

    def __init__(self, index: int) -> None:
        self._index = index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def grow(self, text: str) -> list[Event]:
        self._pieces.append(text)
        return self.grown(text)

    @abstractmethod
    def made(self) -> Any:
        """The block as it is now."""

    @abstractmethod
    def opened(self) -> list[Event]:
        """The events that begin it."""

    @abstractmethod
    def grown(self, text: str) -> list[Event]:
        """The events of more of its text."""

    @abstractmethod
    def closed(self) -> list[Event]:
        """The events that end it."""


Open = TypeVar("Open", bound=Block[Any])


@dataclass
class BlockWriter(AnswerWriter, Generic[Event, Open]):
    """Makes the events of the blocks of one choice; streamed or not, the same events make the answer."""

    count: TokenCount
    choice: ParsedChoice
    _open: Open | None = field(default=None, init=False)
    _closed: list[Any] = field(default_factory=list, init=False)  # what was made
    _last: Delta | None = field(default=None, init=False)  # that was said

    def _grow(self, deltas: Deltas) -> list[Event]:
        events: list[Event] = []
        for number, delta in deltas:
            self.count.add(number, delta)
            for part in self.choice.take(delta):
                events += self._say(part)
            self.count.reasoning += self.choice.new_reasoning_tokens()
            self._last = delta
        return events

    def _say(self, part: Part) -> list[Event]:
        events: list[Event] = []
        if self._open is None or not isinstance(part, self._open.grows_by):
            block = self._block(part)
            events = self._close()
            self._open = block
            events += block.opened()
        if isinstance(part, CallBegin):
            return events
        return events + self._open.grow(part if isinstance(part, str) else part.text)

    @property
    def _place(self) -> int:
        """Where a new block goes: behind those that are done and the open one."""
        return len(self._closed) + (self._open is not None)

    @abstractmethod
    def _block(self, part: Part) -> Open:
        """The block that begins with a part."""

    def _close(self) -> list[Event]:
        """The events of the end of the open block, if there is one."""
        block, self._open = self._open, None
        if block is None:
            return []
        self._closed.append(block.made())
        return block.closed()
