"""The token streams of one HTTP request, merged in order of arrival."""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.errors import EngineFailure, HexserveError
from engine.request import Delta
from server.engine_seam import TokenStreamLike
from server.http.errors import RequestTimeout
from server.http.in_flight import InFlight
from server.http.metrics import RequestWatch

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
        streams: Sequence[TokenStreamLike],
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
        self._timer = (
            asyncio.get_running_loop().call_later(max(0.0, timeout_s - waited_s), self._expire, timeout_s)
            if timeout_s > 0
            else None
        )
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

    async def _pump(self, index: int, stream: TokenStreamLike) -> None:
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

    def _expire(self, timeout_s: float) -> None:
        self.fail(RequestTimeout.after(timeout_s))
