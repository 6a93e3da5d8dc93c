"""The token streams of one HTTP request, merged in order of arrival, and the inputs of one that become vectors."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from engine.client.engine import TokenStream
from engine.errors import Busy, BusyReason, EngineFailure, HexserveError
from engine.request import Delta
from server.http.errors import RequestTimeout
from server.http.in_flight import InFlight
from server.observability.metrics import RequestWatch

_log = logging.getLogger("hexserve")
DELTAS_AHEAD = 64  # beyond this a slow reader fills the stream's own bounded buffer instead


class ChoiceDelta(NamedTuple):
    """One delta; `choice` is OpenAI's index (prompt * n + number)."""

    choice: int
    delta: Delta


class MergedStream:
    """Owns its token streams from submission to `abort`, which every exit path must call (a plain call, repeatable)."""

    def __init__(
        self,
        streams: Sequence[TokenStream],
        in_flight: InFlight,
        watch: RequestWatch,
        timeout_s: float = 0.0,
        waited_s: float = 0.0,  # of the timeout, before there was a stream
    ) -> None:
        self.prompt_tokens = tuple(stream.prompt_tokens for stream in streams)
        self._unfinished = dict(enumerate(streams))
        self._in_flight = in_flight
        self._watch = watch
        self._deltas: deque[ChoiceDelta] = deque()
        self._failure: HexserveError | None = None
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._pumps = [asyncio.create_task(self._pump(i, stream)) for i, stream in self._unfinished.items()]
        for pump in self._pumps:
            pump.add_done_callback(self._pump_ended)
        self._timer: asyncio.TimerHandle | None = None
        if timeout_s > 0:
            late = RequestTimeout.after(timeout_s)
            self._timer = asyncio.get_running_loop().call_later(max(0.0, timeout_s - waited_s), self.fail, late)
        in_flight.enter(self)

    async def deltas(self) -> list[ChoiceDelta]:
        """The deltas that have arrived, at least one. A failure is raised once every delta before it was returned."""
        while not self._deltas:
            if self._failure is not None:
                raise self._failure
            self._wake.clear()
            await self._wake.wait()
        taken = list(self._deltas)
        self._deltas.clear()
        self._room.set()
        return taken

    def fail(self, error: HexserveError) -> None:
        """The reader gets `error` after what has arrived. The first failure counts."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    def abort(self) -> None:
        """Abort every unfinished stream and leave the count of requests in flight."""
        for stream in self._unfinished.values():
            stream.abort()
            self._watch.finished("error" if self._failure is not None else "abort", None)
        self._unfinished.clear()
        for pump in self._pumps:
            pump.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._in_flight.leave(self)

    async def _pump(self, index: int, stream: TokenStream) -> None:
        previous = self._watch.submitted_at
        async for delta in stream:
            fresh = 0 if delta.is_known else len(delta.token_ids)
            previous = self._watch.tokens_arrived(fresh, previous)
            if delta.finish is not None:
                del self._unfinished[index]
                self._watch.finished(delta.finish.value, delta.timings)
            while len(self._deltas) >= DELTAS_AHEAD:
                self._room.clear()
                await self._room.wait()
            self._deltas.append(ChoiceDelta(index, delta))
            self._wake.set()
        if index in self._unfinished:
            raise EngineFailure("The generation ended without a finish.")

    def _pump_ended(self, pump: "asyncio.Task[None]") -> None:
        if pump.cancelled():
            return
        error = pump.exception()
        if isinstance(error, HexserveError):
            self.fail(error)
        elif error is not None:
            _log.error("a generation broke", exc_info=error)
            self.fail(EngineFailure(f"The generation broke: {type(error).__name__}."))


INPUTS_AT_ONCE = 64  # of one request: as many rows as a step has, unless each has two or three


class InputSlots:
    """Places in the engine for inputs of all requests together, taken in order of asking. One event loop.

    count: of places. requests: most HTTP requests that have or await some.
    """

    def __init__(self, count: int, requests: int) -> None:
        self.places = asyncio.Semaphore(count)
        self._free_requests = requests

    def enter(self) -> None:
        if not self._free_requests:
            raise Busy("Too many requests for embeddings are waiting.", BusyReason.REQUESTS, retry_after_s=2.0)
        self._free_requests -= 1

    def leave(self) -> None:
        self._free_requests += 1


class PooledRun:
    """One request's inputs. `submit(number)` gives the stream of one; it is called when there is a place for it.

    timeout_s: of the request, 0 = none; waited_s: what of it has passed already.
    """

    def __init__(
        self,
        submit: Callable[[int], TokenStream],
        count: int,
        slots: InputSlots,
        in_flight: InFlight,
        watch: RequestWatch,
        timeout_s: float = 0.0,
        waited_s: float = 0.0,
    ) -> None:
        self._submit = submit
        self._vectors: list[bytes | None] = [None] * count
        self._numbers: Iterator[int] = iter(range(count))
        self._slots = slots
        self._in_flight = in_flight
        self._watch = watch
        self._timeout_s = timeout_s
        self._left_s = max(0.0, timeout_s - waited_s) if timeout_s else None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: HexserveError) -> None:
        """End it with this error; the first counts."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def vectors(self) -> list[bytes]:
        """What the engine gives for each input, in order. Whatever happens, no input is left in the engine.

        Raises what `submit` and the streams raise, RequestTimeout, and what `fail` is told.
        """
        self._slots.enter()
        self._in_flight.enter(self)
        workers = [asyncio.create_task(self._work()) for _ in range(min(INPUTS_AT_ONCE, len(self._vectors)))]
        done = asyncio.gather(*workers)
        try:
            await asyncio.wait((done, self._failed), timeout=self._left_s, return_when="FIRST_COMPLETED")
            if self._failed.done():
                self._failed.result()
            if not done.done():
                raise RequestTimeout.after(self._timeout_s)
            done.result()
        finally:
            done.cancel()
            self._failed.cancel()
            await asyncio.gather(done, self._failed, *workers, return_exceptions=True)
            self._in_flight.leave(self)
            self._slots.leave()
        return [vector for vector in self._vectors if vector is not None]

    async def _work(self) -> None:
        for number in self._numbers:
            async with self._slots.places:
                stream = self._submit(number)
                try:
                    self._vectors[number] = await self._vector(stream)
                finally:
                    stream.abort()

    async def _vector(self, stream: TokenStream) -> bytes:
        reason = "abort"
        try:
            async for delta in stream:
                if delta.finish is not None:
                    self._watch.finished(delta.finish.value, delta.timings)
                    reason = ""
                    return delta.vector
            raise EngineFailure("An input ended without a vector.")
        except HexserveError:
            reason = "error"
            raise
        finally:
            if reason:
                self._watch.finished(reason, None)
