"""One request after the other, as Genie serves them: the prompt in wide steps, then a step for every token."""

from collections import deque

from tools.simulate.clock import Step
from tools.simulate.load import Job
from tools.simulate.prices import Prices
from tools.simulate.progress import RequestProgress


class Serial:
    """First come, first served. A chunk runs in the variant of fewest rows that holds it, else in the widest."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._queue: deque[RequestProgress] = deque()

    def add(self, job: Job, now_s: float) -> None:
        """Queue a request."""
        self._queue.append(RequestProgress(job))

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished."""
        return bool(self._queue)

    @property
    def preemptions(self) -> int:
        """None: each has the whole cache."""
        return 0

    def step(self) -> Step:
        """A chunk of the first request's prompt, or its next token."""
        first = self._queue[0]
        shape = self._prices.fitting(first.prompt_left or 1, first.computed)
        rows = min(first.prompt_left or 1, shape.rows)
        tokens = first.advance(rows)
        if first.is_finished:
            self._queue.popleft()
        return Step(self._prices.milliseconds[shape], shape.rows, rows, tokens)
