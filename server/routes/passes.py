"""GET /v1/passes: what each pass of the engine was, as it happens. The worker records passes only while one is open."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request, Response
from sse_starlette import EventSourceResponse
from starlette.types import Receive, Scope, Send

from engine.client.pass_feed import PassWatch
from engine.messages import Stats
from server.http.sse import COMMENT, DONE, HEADERS, frame
from server.models.models import find
from server.protocol.openapi_responses import event_answers
from server.protocol.passes import PassesEvent
from server.service import server_of
from server.writers.passes import beginning, passes_event

router = APIRouter()
INTERVAL_S = 0.05  # between two events: twenty a second look alive, and one for each pass of a small model is many


@router.get("/v1/passes", response_class=Response, responses=event_answers(PassesEvent))
async def watch_passes(request: Request, model: str | None = None) -> Response:
    """Stream what each pass was: its rows by sequence and kind, its time, the queue and the columns in use.

    Watching neither loads a model nor keeps one loaded: the stream ends when the model is not there, or goes.
    """
    server = server_of(request)
    known = server.models.models
    engine = (known[0] if model is None else find(known, model)).engine
    if engine is None:
        return Response(frame(beginning(Stats())) + DONE, headers=HEADERS, media_type="text/event-stream")
    return PassResponse(engine.watch_passes(), engine.stats, server.settings.keep_alive_s)


class PassResponse(EventSourceResponse):
    """The events of one watch, which ends with the answer however that ends."""

    def __init__(self, watch: PassWatch, stats: Stats, keep_alive_s: float) -> None:
        self._watch = watch
        events = _frames(watch, stats)
        super().__init__(events, headers=HEADERS, ping=keep_alive_s, sep="\n", ping_message_factory=lambda: COMMENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watch.end()


async def _frames(watch: PassWatch, stats: Stats) -> AsyncIterator[bytes]:
    yield frame(beginning(stats))
    while True:
        records, dropped = await watch.read()
        if not records:
            break
        yield frame(passes_event(records, dropped))
        await asyncio.sleep(INTERVAL_S)
    yield DONE
