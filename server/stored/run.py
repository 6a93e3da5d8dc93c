"""A stored response that is being generated, with or without a client that listens."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from engine.errors import EngineFailure, HexserveError
from server.http.errors import StorageFailed
from server.http.merged_stream import ChoiceDelta, MergedStream
from server.stored.record import Json, ResponseKey, ResponseRecord
from server.stored.status import ResponseStatus
from server.stored.store import ResponseStore


class RunWriter(Protocol):
    """Turns deltas into events, which make the response."""

    @property
    def finished(self) -> bool:
        """True when the model has said everything."""

    @property
    def response(self) -> Json:
        """The response as it is now."""

    def queued(self) -> list[Json]:
        """The events of a response that waits."""

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[Json]:
        """The events of these deltas."""

    def closing(self) -> list[Json]:
        """The end of the last item; the response is complete then."""

    def ended(self) -> Json:
        """The last event."""

    def failure(self, error: HexserveError) -> list[Json]:
        """The events of the end of a response that cannot go on."""

    def cancelled(self) -> list[Json]:
        """The events of the end of a response that nobody wants any more."""


class ResponseCancelled(HexserveError):
    """The caller cancelled the response."""


class ResponseRun:
    """Owns the events of one response until it has ended and is stored."""

    def __init__(self, record: ResponseRecord, stream: MergedStream, writer: RunWriter, store: ResponseStore) -> None:
        self.key: ResponseKey = record.key
        self.is_background = record.is_background
        self.has_said = False  # something of the model
        self.is_stored = False  # its end
        self._status = record.status
        self._stream = stream
        self._writer = writer
        self._store = store
        self._failure: HexserveError | None = EngineFailure("The response broke off.")  # until it has ended well
        self._events: list[Json] = []
        self._has_ended = False
        self._grown = asyncio.Event()
        if record.is_background:
            self._say(writer.queued())

    @property
    def response(self) -> Json:
        """The response as it is now."""
        return self._writer.response

    @property
    def failure(self) -> HexserveError | None:
        """Why it has ended before its time; None while it has not."""
        return self._failure if self._has_ended else None

    async def drive(self) -> None:
        """Generate to the end. The end is stored before anyone is told of it."""
        try:
            await self._generate()
            self._failure = None
        except ResponseCancelled as error:
            self._failure = error
            await self._break_off(ResponseStatus.CANCELLED, self._writer.cancelled())
        except HexserveError as error:
            self._failure = error
            await self._break_off(ResponseStatus.FAILED, self._writer.failure(error))
        finally:
            self._stream.abort()
            self._has_ended = True
            self._wake()

    def cancel(self) -> None:
        """End it after what has arrived; nothing happens when it has ended. A plain call."""
        self._stream.fail(ResponseCancelled("The response was cancelled."))

    async def first(self, patience_s: float) -> None:
        """Wait until the model has said something, or the response has ended, or `patience_s` (0 = for ever)."""
        try:
            async with asyncio.timeout(patience_s or None):
                while not (self.has_said or self._has_ended):
                    await self._grown.wait()
        except TimeoutError:
            pass

    async def ended(self) -> None:
        """Wait until it has ended and is stored."""
        while not self._has_ended:
            await self._grown.wait()

    async def events(self, after: int = -1) -> AsyncIterator[Sequence[Json]]:
        """The events behind a sequence number, as they come."""
        place = after + 1
        while True:
            new = self._events[place:]
            if new:
                place += len(new)
                yield new
            elif self._has_ended:
                return
            else:
                await self._grown.wait()

    async def _generate(self) -> None:
        while not self._writer.finished:
            deltas = await self._stream.deltas()
            self.has_said = True
            if self._status is ResponseStatus.QUEUED:
                self._status = ResponseStatus.IN_PROGRESS
                await self._store.update(self.key.id, self._status, self._writer.response)
            self._say(self._writer.chunks(deltas))
        self._say(self._writer.closing())
        await self._keep(ResponseStatus(self._writer.response["status"]), [self._writer.ended()])

    async def _break_off(self, status: ResponseStatus, events: list[Json]) -> None:
        try:
            await self._keep(status, events)
        except StorageFailed:  # told already, by the log and by what made this one end
            self._say(events)

    async def _keep(self, status: ResponseStatus, last: list[Json]) -> None:
        """Store the end, then say it."""
        everything = [*self._events, *self._in_order(last)] if self.is_background else None
        await self._store.update(self.key.id, status, self._writer.response, everything)
        self.is_stored = True
        self._say(last)

    def _say(self, events: list[Json]) -> None:
        self._events += self._in_order(events)
        self._wake()

    def _in_order(self, events: list[Json]) -> list[Json]:
        """Numbered in the order they are said: an end that could not be stored was never said."""
        return [event | {"sequence_number": number} for number, event in enumerate(events, len(self._events))]

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()
