"""Who is inside: lets requests in, counts them, and sends everyone home when the server ends."""

import asyncio
import time
from collections import deque
from typing import Protocol

from engine.errors import Busy, HexserveError

REMEMBERED_FINISHES = 64


class InFlightRequest(Protocol):
    """Something that is in flight and can be ended."""

    def fail(self, error: HexserveError) -> None:
        """End it with this error."""


class InFlight:
    """State of the event loop's thread: the requests inside and whether more are let in."""

    def __init__(self, max_queued: int) -> None:
        self._max_queued = max_queued
        self._inside: set[InFlightRequest] = set()
        self._finished_at: deque[float] = deque(maxlen=REMEMBERED_FINISHES)
        self._empty = asyncio.Event()
        self._empty.set()
        self._has_ended = False
        self.draining = False

    @property
    def inside(self) -> int:
        """HTTP requests that generate now."""
        return len(self._inside)

    def check_open(self, unfinished: int, wanted: int) -> None:
        """Busy while draining, or when `wanted` more sequences do not fit beside `unfinished` ones.

        Asked before tokenising, so that a full server stays cheap to refuse with; the engine asks again.
        """
        if self.draining:
            raise shutting_down()
        if unfinished and unfinished + wanted > self._max_queued:
            raise Busy(
                f"The server is full: {unfinished} requests are queued or running and {wanted} more were asked for, "
                f"the limit is {self._max_queued}.",
                self._expected_wait_s(unfinished),
            )

    def _expected_wait_s(self, unfinished: int) -> float:
        """Seconds in which those inside finish at the recent rate; the caller bounds it."""
        if len(self._finished_at) < 2:
            return 1.0
        return unfinished * (time.monotonic() - self._finished_at[0]) / len(self._finished_at)

    def enter(self, request: InFlightRequest) -> None:
        """Count a request in."""
        if not self._inside:
            self._finished_at.clear()  # an idle hour says nothing about the rate
        self._inside.add(request)
        self._empty.clear()
        if self._has_ended:  # it was tokenising when the end came
            request.fail(shutting_down())

    def leave(self, request: InFlightRequest) -> None:
        """Count a request out; may be repeated."""
        if request not in self._inside:
            return
        self._inside.discard(request)
        self._finished_at.append(time.monotonic())
        if not self._inside:
            self._empty.set()

    async def wait_empty(self, timeout_s: float) -> bool:
        """Wait until nobody is inside; False when the time ran out first."""
        if self._empty.is_set():
            return True
        try:
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def end(self) -> None:
        """Let nobody in any more and end everyone inside with an error."""
        self.draining = True
        self._has_ended = True
        for request in list(self._inside):
            request.fail(shutting_down())


def shutting_down() -> Busy:
    """What everyone hears who comes or stays too late."""
    return Busy("The server is shutting down.", retry_after_s=10.0)
