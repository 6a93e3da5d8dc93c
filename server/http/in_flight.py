"""The HTTP requests that generate now, and what each holds until its answer has ended."""

import asyncio
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Protocol, cast

from starlette.types import ASGIApp, Receive, Scope, Send

from engine.errors import Busy, HexserveError


class InFlightRequest(Protocol):
    def fail(self, error: HexserveError) -> None:
        """End it with this error."""


class InFlight:
    """Belongs to one event loop. `draining`: nothing new is let in, what runs goes on."""

    def __init__(self) -> None:
        self._requests: set[InFlightRequest] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._has_ended = False
        self.draining = False

    @property
    def count(self) -> int:
        return len(self._requests)

    def check_open(self) -> None:
        """Raise Busy while the server is draining."""
        if self.draining:
            raise Busy.shutting_down()

    def enter(self, request: InFlightRequest) -> None:
        """Count a request in; one that comes after `end`, because it was being tokenised, is ended at once."""
        self._requests.add(request)
        self._empty.clear()
        if self._has_ended:
            request.fail(Busy.shutting_down())

    def leave(self, request: InFlightRequest) -> None:
        """Count a request out; may be repeated."""
        self._requests.discard(request)
        if not self._requests:
            self._empty.set()

    async def wait_empty(self, timeout_s: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        return self._empty.is_set()

    def end(self) -> None:
        self.draining = True
        self._has_ended = True
        for request in list(self._requests):
            request.fail(Busy.shutting_down())


class HeldUntilAnswered:
    """ASGI layer that gives back what `hold_until_answered` took for the request; also when its client leaves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as held:
            scope.setdefault("state", {})["held"] = held
            await self._app(scope, receive, send)


def hold_until_answered(scope: Scope, holding: AbstractContextManager[None]) -> None:
    """Enter `holding` now and leave it when the answer to the request of `scope` has ended."""
    cast(ExitStack, scope["state"]["held"]).enter_context(holding)
