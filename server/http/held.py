"""What a request holds until its answer has ended, be it sent, broken off or refused."""

from contextlib import AbstractContextManager, ExitStack
from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send


class HeldUntilAnswered:
    """ASGI layer that gives back what `hold_until_answered` took for the request; also when its client leaves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        with ExitStack() as held:
            scope.setdefault("state", {})["held"] = held
            await self._app(scope, receive, send)


def hold_until_answered(scope: Scope, holding: AbstractContextManager[None]) -> None:
    """Enter `holding` now and leave it when the answer to the request of `scope` has ended."""
    cast(ExitStack, scope["state"]["held"]).enter_context(holding)
