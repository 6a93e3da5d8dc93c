"""Admission control: limits on waiting and running requests, the reason of a refusal, and when to try again."""

import time
from collections import deque
from collections.abc import Callable

from engine.errors import Busy, BusyReason

REMEMBERED_FINISHES = 64
SHORTEST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0  # older client libraries ignore a Retry-After above one minute


class AdmissionControl:
    """Counts unfinished requests and the prompt tokens that still wait, and how fast requests finish. max_requests:
    unfinished requests at once. max_waiting_tokens: prompt tokens whose request has no token yet; 0 = no limit."""

    def __init__(self, max_requests: int, max_waiting_tokens: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_requests, self._max_waiting_tokens = max_requests, max_waiting_tokens
        self._clock = clock
        self._inside: dict[str, int] = {}  # request id -> prompt tokens that wait, 0 once it has a token
        self._waiting_tokens = 0
        self._finished_at: deque[float] = deque(maxlen=REMEMBERED_FINISHES)

    def check_room(self, requests: int) -> None:
        """Raise Busy when so many more requests do not fit; if nothing waits or runs, that is for `enter` to say."""
        unfinished = len(self._inside)
        if unfinished and unfinished + requests > self._max_requests:
            more = f" and {requests} more were asked for" if requests > 1 else ""
            told = f"{unfinished} requests are queued or running{more}, the limit is {self._max_requests}"
            raise Busy(f"The server is full: {told}.", BusyReason.REQUESTS, self.expected_wait_s())

    def enter(self, request_id: str, prompt_tokens: int) -> None:
        """Let a request in, or raise Busy with the queue's numbers. A lone request is never too long for the queue."""
        self.check_room(1)
        waiting, most = self._waiting_tokens, self._max_waiting_tokens
        if most and waiting and waiting + prompt_tokens > most:
            told = f"{waiting} prompt tokens are waiting, this request has {prompt_tokens} and the limit is {most}"
            raise Busy(f"The server is full: {told}.", BusyReason.PROMPT_TOKENS, self.expected_wait_s())
        if not self._inside:
            self._finished_at.clear()  # an idle hour says nothing about the rate
        self._inside[request_id] = prompt_tokens
        self._waiting_tokens += prompt_tokens

    def started(self, request_id: str) -> None:
        if waiting := self._inside.get(request_id, 0):
            self._waiting_tokens -= waiting
            self._inside[request_id] = 0

    def leave(self, request_id: str, finished: bool) -> None:
        """A request is gone; ids that never entered are ignored. Only finished ones tell how fast the queue drains."""
        if request_id in self._inside:
            self._waiting_tokens -= self._inside.pop(request_id)
            if finished:
                self._finished_at.append(self._clock())

    def expected_wait_s(self) -> float:
        """Seconds until the requests inside are done at the recent rate, within 1 to 60."""
        if len(self._finished_at) < 2:
            return SHORTEST_WAIT_S
        rate = len(self._finished_at) / max(self._clock() - self._finished_at[0], 1e-3)
        return min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, len(self._inside) / rate))
