"""The policies that hexserve's scheduler is compared with: serial as in Genie, and mllm's fusion."""

from collections import deque
from dataclasses import dataclass

from tools.simulate.clock import Step
from tools.simulate.load import Job
from tools.simulate.prices import Prices


@dataclass(slots=True)
class RequestProgress:
    """computed: tokens whose keys and values are cached. emitted: tokens that came out; the newest is not cached."""

    job: Job
    computed: int = 0
    emitted: int = 0

    @property
    def prompt_left(self) -> int:
        """Prompt tokens that are not cached."""
        return max(0, self.job.prompt - self.computed)

    @property
    def is_finished(self) -> bool:
        """Whether every token came out."""
        return self.emitted == self.job.output

    def advance(self, rows: int) -> tuple[tuple[int, int], ...]:
        """Compute so many more rows: the next token, if they reached it, as (job, token)."""
        self.computed += rows
        if self.prompt_left:
            return ()
        self.emitted += 1
        return ((self.job.number, self.emitted - 1),)


class Queues:
    """Requests that wait for their turn, and those that go on."""

    preemptions = 0  # each request has caches of its own

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._queue: deque[RequestProgress] = deque()
        self._decode_queue: deque[RequestProgress] = deque()

    def add(self, job: Job, now_s: float) -> None:
        """Queue a request."""
        self._queue.append(RequestProgress(job))

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self._queue or self._decode_queue)


class Serial(Queues):
    """One request after the other, as Genie serves them: the prompt in wide steps, then a step for every token.

    A chunk runs in the variant of fewest rows that holds it, else in the widest.
    """

    def step(self) -> Step:
        """A chunk of the first request's prompt, or its next token."""
        first = self._queue[0]
        shape = self._prices.fitting(first.prompt_left or 1, first.computed)
        rows = min(first.prompt_left or 1, shape.rows)
        tokens = first.advance(rows)
        if first.is_finished:
            self._queue.popleft()
        return Step(self._prices.milliseconds[shape], shape.rows, rows, tokens)


class Fusion(Queues):
    """Prefill/decode fusion as mllm has it: in each step a chunk of one prompt and one decode row.

    The decode row belongs to the front of the decode queue until that request ends. A step has N rows, of which N - 1
    may be prompt; without a prompt the variant of one row runs. A step that serves both queues costs `Prices.slot_ms`
    more, for its second cache.
    """

    def step(self) -> Step:
        """The fronts of both queues, or of the one that is not empty."""
        prefill = self._queue[0] if self._queue else None
        decode = self._decode_queue[0] if self._decode_queue else None
        past = max(each.computed for each in (prefill, decode) if each is not None)
        wanted = prefill.prompt_left + 1 if prefill is not None else 1
        shape = self._prices.fitting(wanted, past)
        chunk = min(wanted, shape.rows) - 1
        tokens = (*self._prefill(chunk), *self._decode(decode))
        is_fused = prefill is not None and decode is not None
        cost = self._prices.milliseconds[shape] + self._prices.slot_ms * is_fused
        return Step(cost, shape.rows, chunk + (decode is not None), tokens)

    def _prefill(self, rows: int) -> tuple[tuple[int, int], ...]:
        """Compute a chunk; a prompt that is done joins the decode queue behind the others."""
        if not self._queue:
            return ()
        front = self._queue[0]
        tokens = front.advance(rows)
        if tokens:
            self._queue.popleft()
            if not front.is_finished:
                self._decode_queue.append(front)
        return tokens

    def _decode(self, front: RequestProgress | None) -> tuple[tuple[int, int], ...]:
        """The next token of the request that was in front when the step was planned."""
        if front is None:
            return ()
        tokens = front.advance(1)
        if front.is_finished:
            self._decode_queue.popleft()
        return tokens
