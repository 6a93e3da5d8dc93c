"""One request's stream of deltas: filled by the engine, read by whoever submitted the request."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from statistics import fmean

from engine.errors import EngineFailure, HexserveError
from engine.request import Delivered, Delta, GuessCounts, Request, RequestTimings, TokenEvent, TokenLogprob, rate
from engine.text.assembler import StopRules, TextAssembler
from engine.text.tokenizer import Tokenizer

KEPT_REQUESTS = 1024  # that the means are over
OnEnd = Callable[["TokenStream", RequestTimings | None], None]


def timings_line(finished: Collection[RequestTimings]) -> str:
    """Means in one line, in the form of `RequestTimings.line`; each over the requests that have the quantity."""

    def mean(values: Iterable[float | None]) -> float:
        known = [value for value in values if value is not None]
        return fmean(known) if known else 0.0

    prompt = mean(rate(one.computed_tokens, one.prompt_ms) or None for one in finished)
    generate = mean(rate(one.generated_tokens - 1, one.generate_ms) or None for one in finished)
    acceptance = mean(one.accepted_tokens / one.drafted_tokens for one in finished if one.drafted_tokens)
    return (
        f"requests:{len(finished)} prompt:{mean(one.prompt_ms for one in finished):.1f}ms "
        f"generate:{mean(one.generate_ms for one in finished):.1f}ms tps:prompt={prompt:.1f} generate={generate:.1f} "
        f"rows/step={mean(one.step_rows / one.steps for one in finished if one.steps):.1f} acceptance={acceptance:.2f}"
    )


class TokenStream:
    """Async iterator of `Delta`; the last one has `finish` set. One reader, on the engine's event loop. Iterating
    raises EngineFailure, WorkerDied or InvalidRequest when the request cannot go on. Deltas that are not read are kept
    up to a bound; beyond it the request is dropped and the reader gets EngineFailure."""

    def __init__(
        self, request: Request, tokenizer: Tokenizer, rules: StopRules, buffer_deltas: int, on_end: OnEnd
    ) -> None:
        self.id = request.id
        self.prompt_tokens = len(request.prompt_ids)
        self._has_logprobs = request.params.logprobs is not None
        self._assembler = TextAssembler(tokenizer, rules)
        self._buffer_deltas, self._on_end = buffer_deltas, on_end
        self._deltas: deque[Delta] = deque()
        self._error: HexserveError | None = None
        self._ended = False  # nothing more will be fed
        self._reader: asyncio.Future[None] | None = None
        self._submitted_at = time.perf_counter()
        self._first_token_at: float | None = None
        self._generated_tokens = 0
        self._cached_tokens = 0
        self._queue_ms = 0.0
        self._devices: dict[str, None] = {}  # in order
        self._guesses = GuessCounts()

    def __aiter__(self) -> "TokenStream":
        return self

    async def __anext__(self) -> Delta:
        while not self._deltas:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._ended:
                raise StopAsyncIteration
            assert self._reader is None, "a generation has one reader"
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self._deltas.popleft()

    def abort(self) -> None:
        """Forget the request: the worker frees its rows, what was not read is dropped, iteration ends."""
        self._deltas.clear()
        self._error = None
        self._end(None)

    def feed(self, event: TokenEvent) -> None:
        if not self._ended:
            self._take(event, self._assembler.feed(event))

    def resume(self, delivered: Delivered) -> bool:
        """Take what another server has said of this answer (called by the engine, first of all); whether it goes on."""
        stopped_by = delivered.stopped_by if isinstance(delivered.stopped_by, int) else None
        finish = None if isinstance(delivered.stopped_by, str) else delivered.finish  # a stop string is found again
        # Numbers nobody sees again; but the tokens' places in the text are counted by their log-probabilities.
        scores = tuple(TokenLogprob(each, 0.0) for each in delivered.token_ids) if self._has_logprobs else ()
        event = TokenEvent(self.id, delivered.token_ids, scores, finish, stopped_by)
        self._take(event, replace(self._assembler.feed(event), is_known=True))
        return not self._ended

    def _take(self, event: TokenEvent, delta: Delta) -> None:
        self._cached_tokens = self._cached_tokens or event.cached_tokens
        self._generated_tokens += len(delta.token_ids)
        if event.device:
            self._devices[event.device] = None
        if event.guesses is not None:
            self._guesses = self._guesses.plus(event.guesses)
        if self._first_token_at is None and delta.token_ids:
            self._first_token_at, self._queue_ms = time.perf_counter(), event.queue_ms
        if delta.finish is not None:
            delta = replace(delta, timings=self._timings(event.timings))
        self._deltas.append(delta)
        if delta.finish is not None:
            self._end(delta.timings)
        elif len(self._deltas) > self._buffer_deltas and self._reader is None:  # a waiting reader is not behind
            self._deltas.clear()
            self.fail(EngineFailure(f"The stream was dropped: its reader is {self._buffer_deltas} pieces behind."))
        self._wake()

    def fail(self, error: HexserveError) -> None:
        """The request cannot go on; the reader gets `error` after what was already produced (called by the engine)."""
        if not self._ended:
            self._error = error
            self._end(None)

    def _end(self, timings: RequestTimings | None) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(self, timings)
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _timings(self, measured: RequestTimings | None) -> RequestTimings:
        """The worker's timings with our counts; without them (a stop string, a restart) what our own clock says."""
        now = time.perf_counter()
        first = self._first_token_at if self._first_token_at is not None else now
        first_ms = 1000.0 * (first - self._submitted_at)
        if measured is None:
            measured = RequestTimings(
                queue_ms=self._queue_ms,
                prompt_ms=max(0.0, first_ms - self._queue_ms),
                generate_ms=1000.0 * (now - first),
                prompt_tokens=self.prompt_tokens,
                cached_tokens=self._cached_tokens,
                generated_tokens=self._generated_tokens,
                drafted_tokens=self._guesses.drafted,
                accepted_tokens=self._guesses.accepted,
            )
        return replace(
            measured,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self._generated_tokens,
            predicted_tokens=self._guesses.predicted,
            accepted_predicted_tokens=self._guesses.predicted_accepted,
            first_token_ms=first_ms if self._first_token_at is not None else 0.0,
            devices=tuple(self._devices),
        )
