"""The token streams of one HTTP request, merged in order of arrival, and the inputs of one that become vectors.

Answers that another server can go on with: what a gateway gives with a request, and what it notes while it streams. A
gateway sends `{"request": body, "resumption": {...}}` as RESUMABLE. Behind the chunks of each group of tokens a stream
then has a comment `: delivered [...]` with those tokens, which readers of events ignore. When the server is lost, the
gateway sends the same again with all that was delivered: the tokens are computed as part of the prompt, not said again.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from engine.client.engine import TokenStream
from engine.errors import Busy, BusyReason, EngineFailure, HexserveError
from engine.request import Delivered, Delta, FinishReason
from server.http.errors import RequestTimeout, refuse
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
        self._in_flight, self._watch = in_flight, watch
        self._deltas: deque[ChoiceDelta] = deque()
        self._failure: HexserveError | None = None
        self._wake, self._room = asyncio.Event(), asyncio.Event()
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
        if self._failure is None:
            self._failure = error
        self._wake.set()

    def abort(self) -> None:
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
    """Places in the engine for inputs of all requests, in order of asking. requests: most that have or await some."""

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
    timeout_s: of the request, 0 = none; waited_s: what of it has passed already."""

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
        self._submit, self._slots, self._in_flight, self._watch = submit, slots, in_flight, watch
        self._vectors: list[bytes | None] = [None] * count
        self._numbers: Iterator[int] = iter(range(count))
        self._timeout_s = timeout_s
        self._left_s = max(0.0, timeout_s - waited_s) if timeout_s else None
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: HexserveError) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    async def vectors(self) -> list[bytes]:
        """What the engine gives for each input, in order. Whatever happens, no input is left in the engine.
        Raises what `submit` and the streams raise, RequestTimeout, and what `fail` is told."""
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
                except BaseException as error:
                    self._watch.finished("error" if isinstance(error, HexserveError) else "abort", None)
                    raise
                finally:
                    stream.abort()

    async def _vector(self, stream: TokenStream) -> bytes:
        async for delta in stream:
            if delta.finish is not None:
                self._watch.finished(delta.finish.value, delta.timings)
                return delta.vector
        raise EngineFailure("An input ended without a vector.")


RESUMABLE = "application/vnd.hexserve.resumable+json"
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})  # whose streams have the comments
COMMENT = b": delivered "
MOST_CHOICES, MOST_TOKENS = 1024, 1 << 20
Word = Annotated[str, Meta(min_length=8, max_length=64, pattern="^[0-9a-zA-Z_-]+$")]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]


class DeliveredChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Tokens of one choice, in order; finish and stopped_by of the last of them, if it was the last of the answer.

    events: of the whole stream so far, where its format numbers them.
    """

    choice: Annotated[int, Meta(ge=0, lt=MOST_CHOICES)]
    token_ids: Annotated[tuple[TokenId, ...], Meta(max_length=MOST_TOKENS)]
    finish: FinishReason | None = None
    stopped_by: str | int | None = None
    events: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0


class Resumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be the same on every server that works at an answer, and what its client has of it already.

    seed: for requests that bring none. created: Unix seconds.
    """

    id: Word
    created: Annotated[int, Meta(ge=0, lt=1 << 40)]
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)]
    delivered: Annotated[tuple[DeliveredChoice, ...], Meta(max_length=MOST_CHOICES)] = ()

    @classmethod
    def new(cls) -> "Resumption":
        return cls(secrets.token_hex(16), int(time.time()), secrets.randbits(32))

    def of(self, choice: int) -> Delivered | None:
        found = next((each for each in self.delivered if each.choice == choice), None)
        return None if found is None else Delivered(found.token_ids, found.finish, found.stopped_by)

    @property
    def events(self) -> int:
        """Events that the client has of a stream which numbers them."""
        return max((each.events for each in self.delivered), default=0)

    def with_more(self, groups: Iterable[DeliveredChoice]) -> "Resumption":
        """The same answer when these groups have been delivered too, in order."""
        known = {each.choice: each for each in self.delivered}
        for group in groups:
            before = known.get(group.choice)
            ids = group.token_ids if before is None else before.token_ids + group.token_ids
            known[group.choice] = msgspec.structs.replace(group, token_ids=ids)
        return msgspec.structs.replace(self, delivered=tuple(known.values()))


def unwrapped(body: dict[str, Any]) -> tuple[dict[str, Any], Resumption]:
    """The request inside, and its resumption; Refusal 400 naming what is wrong with it."""
    if set(body) != {"request", "resumption"} or not isinstance(body["request"], dict):
        raise refuse(f"A body of the type {RESUMABLE} has the objects 'request' and 'resumption', nothing else.")
    try:
        resumption = msgspec.convert(body["resumption"], Resumption)
    except msgspec.ValidationError as error:
        raise refuse(f"'resumption' is not valid: {error}", "resumption", "invalid_value") from None
    choices = [each.choice for each in resumption.delivered]
    if len(set(choices)) < len(choices):
        raise refuse("'resumption.delivered' names a choice twice.", "resumption", "invalid_value")
    return body["request"], resumption


def comment(deltas: Sequence[ChoiceDelta], events: int = 0) -> bytes:
    """What a gateway notes once it has passed on these deltas. events: so far, where the format numbers them."""
    told = [DeliveredChoice(number, each.token_ids, each.finish, each.stopped_by, events) for number, each in deltas]
    return COMMENT + msgspec.json.encode(told) + b"\n\n"


def noted(line: bytes) -> tuple[DeliveredChoice, ...] | None:
    """What a comment line says; None for any other line."""
    if not line.startswith(COMMENT):
        return None
    return msgspec.json.decode(line[len(COMMENT) :], type=tuple[DeliveredChoice, ...])
