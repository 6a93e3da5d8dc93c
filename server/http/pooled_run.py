"""The inputs of one HTTP request that become vectors: some at a time, so that thousands of them fill no queue."""

import asyncio
from collections.abc import Callable, Iterator

from engine.errors import Busy, BusyReason, EngineFailure, HexserveError
from server.engine_seam import TokenStreamLike
from server.http.errors import RequestTimeout
from server.http.in_flight import InFlight
from server.http.metrics import RequestWatch

INPUTS_AT_ONCE = 64  # of one request: as many rows as a pass has, unless each has two or three


class InputSlots:
    """Places in the engine for inputs of all requests together, taken in order of asking. One event loop.

    count: of places. requests: most HTTP requests that have or await some.
    """

    def __init__(self, count: int, requests: int) -> None:
        self.places = asyncio.Semaphore(count)
        self._free_requests = requests

    def enter(self) -> None:
        """Let a request in; Busy when too many are inside."""
        if not self._free_requests:
            raise Busy("Too many requests for embeddings are waiting.", BusyReason.REQUESTS, retry_after_s=2.0)
        self._free_requests -= 1

    def leave(self) -> None:
        """Let a request out."""
        self._free_requests += 1


class PooledRun:
    """One request's inputs. `submit(number)` gives the stream of one; it is called when there is a place for it.

    timeout_s: of the request, 0 = none; waited_s: what of it has passed already.
    """

    def __init__(
        self,
        submit: Callable[[int], TokenStreamLike],
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

    async def _vector(self, stream: TokenStreamLike) -> bytes:
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
