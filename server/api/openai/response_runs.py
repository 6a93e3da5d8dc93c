"""Stored responses that are being generated, with or without a client that listens, and those in the database."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from typing import Any

from engine.errors import EngineFailure, HexserveError
from server.api.openai.response_answer import ResponseEvent
from server.api.openai.response_writer import ResponseWriter
from server.generation.stream import MergedStream
from server.http.errors import StorageFailed
from server.stored_responses.database import Database, ResponseKey, ResponseRecord, ResponseStatus
from server.stored_responses.store import ResponseStore


class ResponseCancelled(HexserveError):
    """The caller cancelled the response."""


class ResponseRun:
    """Owns the events of one response until it has ended and is stored."""

    def __init__(
        self, record: ResponseRecord, stream: MergedStream, writer: ResponseWriter, store: ResponseStore
    ) -> None:
        self.key, self.is_background = record.key, record.is_background
        self.has_said = False  # something of the model
        self.is_stored = False  # its end
        self._status = record.status
        self._stream, self.writer, self._store = stream, writer, store
        self._failure: HexserveError | None = EngineFailure("The response broke off.")  # until it has ended well
        self._events: list[ResponseEvent] = []
        self._has_ended = False
        self._grown = asyncio.Event()
        if record.is_background:
            self._say(writer.queued())

    @property
    def failure(self) -> HexserveError | None:
        """Why it has ended before its time; None while it has not."""
        return self._failure if self._has_ended else None

    async def drive(self) -> None:
        """Generate to the end. The end is stored before anyone is told of it."""
        try:
            await self._generate()
            self._failure = None
        except HexserveError as error:
            self._failure = error
            is_cancelled = isinstance(error, ResponseCancelled)
            events = self.writer.cancelled() if is_cancelled else self.writer.failure(error)
            try:
                await self._keep(ResponseStatus.CANCELLED if is_cancelled else ResponseStatus.FAILED, events)
            except StorageFailed:  # told already, by the log and by what made this one end
                self._say(events)
        finally:
            self._stream.abort()
            self._has_ended = True
            self._wake()

    def cancel(self) -> None:
        """End it after what has arrived; nothing happens when it has ended. A plain call."""
        self._stream.fail(ResponseCancelled("The response was cancelled."))

    async def first(self, patience_s: float) -> None:
        """Wait until the model has said something, or the response has ended, or `patience_s` (0 = for ever)."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s or None):
                while not (self.has_said or self._has_ended):
                    await self._grown.wait()

    async def ended(self) -> None:
        while not self._has_ended:
            await self._grown.wait()

    async def events(self, after: int = -1) -> AsyncIterator[Sequence[Any]]:
        place = after + 1
        while True:
            if new := self._events[place:]:
                place += len(new)
                yield new
            elif self._has_ended:
                return
            else:
                await self._grown.wait()

    async def _generate(self) -> None:
        while not self.writer.finished:
            deltas = await self._stream.deltas()
            self.has_said = True
            if self._status is ResponseStatus.QUEUED:
                self._status = ResponseStatus.IN_PROGRESS
                await self._store.update(self.key.id, self._status, self.writer.response)
            self._say(self.writer.chunks(deltas))
        self._say(self.writer.closing())
        await self._keep(ResponseStatus(self.writer.response.status), [self.writer.ended()])

    async def _keep(self, status: ResponseStatus, last: Sequence[ResponseEvent]) -> None:
        everything = [*self._events, *self._in_order(last)] if self.is_background else None
        await self._store.update(self.key.id, status, self.writer.response, everything)
        self.is_stored = True
        self._say(last)

    def _say(self, events: Sequence[ResponseEvent]) -> None:
        self._events += self._in_order(events)
        self._wake()

    def _in_order(self, events: Sequence[ResponseEvent]) -> Sequence[ResponseEvent]:
        """Numbered in the order they are said: an end that could not be stored was never said."""
        for number, event in enumerate(events, len(self._events)):
            event.sequence_number = number
        return events

    def _wake(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


UNFINISHED = (ResponseStatus.QUEUED, ResponseStatus.IN_PROGRESS)
MOST_UNSTORED = 64  # ends that the database could not take: known until the server ends
_log = logging.getLogger("hexserve")


class NotHere(Exception):
    """A response that is being generated by another server of the same data folder."""


class StoredResponses:
    """Belongs to one event loop. Raises NotStored for what is unknown or somebody else's, and StorageFailed."""

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self._runs: dict[str, ResponseRun] = {}
        self._unstored: deque[ResponseRun] = deque(maxlen=MOST_UNSTORED)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(
        self,
        record: ResponseRecord,
        stream: MergedStream,
        writer: ResponseWriter,
        followed: Sequence[str],
        model: AbstractContextManager[None],
    ) -> ResponseRun:
        """Store a response as begun and have it generated.
        followed: ids of the responses before it, which stay; model: keeps its model loaded, until it has ended."""
        with ExitStack() as begun:
            begun.callback(stream.abort)
            begun.callback(self.store.unpin, followed)
            self.store.pin(followed)
            begun.enter_context(model)
            await self.store.ask(Database.add, record)
            cleanup = begun.pop_all()
        run = self._runs[record.key.id] = ResponseRun(record, stream, writer, self.store)
        task = asyncio.create_task(self._drive(run, cleanup))
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return run

    async def get(self, key: ResponseKey) -> ResponseRecord:
        run = self._run(key)  # asked first: one that ends meanwhile has its last state too
        record = await self.store.ask(Database.get, key)
        return record if run is None else replace(record, response=run.writer.response)

    async def history(self, record: ResponseRecord) -> list[ResponseRecord]:
        """The responses before one, as far as they are still stored, the first one first."""
        if record.previous is None:
            return []
        return await self.store.ask(Database.history, ResponseKey(record.key.owner, record.previous))

    async def cancel(self, key: ResponseKey) -> ResponseRecord:
        """Cancel a response and return it; one that has ended already is returned as it is. NotHere."""
        await self._end(key)
        return await self.get(key)

    async def delete(self, key: ResponseKey) -> None:
        """Remove a response; one that is being generated ends. NotHere."""
        await self._end(key)
        await self.store.ask(Database.delete, key)

    async def events(self, key: ResponseKey, after: int) -> AsyncIterator[Sequence[Any]]:
        """The events of a response in the background behind a sequence number. NotHere.
        Of one whose server is gone no events are known: only its end is told."""
        run = self._run(key)
        if run is not None:
            return run.events(after)
        record = await self.store.ask(Database.get, key)
        said = await self.store.ask(Database.events, key)
        if said is not None:
            return _once(said[after + 1 :])
        if record.status in UNFINISHED:
            raise NotHere
        return _once([{"type": f"response.{record.status}", "response": record.response, "sequence_number": after + 1}])

    async def settle(self) -> None:
        """Wait until what runs has ended and is stored; `InFlight.end` has failed its streams."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _run(self, key: ResponseKey) -> ResponseRun | None:
        run = self._runs.get(key.id) or next((one for one in self._unstored if one.key == key), None)
        return run if run is not None and run.key == key else None

    async def _end(self, key: ResponseKey) -> None:
        run = self._run(key)
        record = await self.store.ask(Database.get, key)
        if run is not None:
            run.cancel()
            await run.ended()
        elif record.status in UNFINISHED:
            raise NotHere

    async def _drive(self, run: ResponseRun, cleanup: ExitStack) -> None:
        try:
            await run.drive()
        finally:
            cleanup.close()
            del self._runs[run.key.id]
            if not run.is_stored:
                self._unstored.append(run)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a stored response broke", exc_info=error)


async def _once(events: Sequence[Any]) -> AsyncIterator[Sequence[Any]]:
    if events:
        yield events
