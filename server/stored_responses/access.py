"""The part between a request and the store: who asks for which response, and its events as a stream."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, cast

from fastapi import Request

from server.generation.framing import EventStream, frame
from server.http.errors import echo, refuse
from server.middleware.auth import Caller
from server.stored_responses.record import (
    ConversationTooLarge,
    NotContinuable,
    NotStored,
    ResponseKey,
    ResponseRecord,
)
from server.stored_responses.runs import StoredResponses


def stored_of(request: Request) -> StoredResponses | None:
    """The stored responses of the app that a request came to, None when nothing is stored."""
    return cast("StoredResponses | None", request.app.state.stored)


def caller_key(request: Request, id: str) -> ResponseKey:
    """The key of a response of this caller."""
    caller = cast("Caller | None", request.scope.get("state", {}).get("caller"))
    return ResponseKey(caller.owner if caller is not None else "", id)


async def previous_of(request: Request, id: str | None) -> Sequence[ResponseRecord]:
    """The responses that a request follows, the first one first. Refusal naming `previous_response_id`."""
    stored = stored_of(request)
    if id is None or stored is None:
        return ()
    param = "previous_response_id"
    try:
        return await stored.store.conversation(caller_key(request, id), request.app.state.body_limits.size_bytes)
    except NotStored as missing:
        message = f"Previous response with id {echo(missing.id)} not found."
        raise refuse(message, param, "previous_response_not_found", 404) from None
    except NotContinuable as error:
        message = f"The response {echo(error.id)} cannot be followed: it is {error.status}, not completed."
        raise refuse(message, param, "invalid_value") from None
    except ConversationTooLarge as error:
        message = f"The responses before this one have {error.size} bytes, the limit is {error.limit}."
        raise refuse(message, param, "invalid_value") from None


def event_stream(
    batches: AsyncIterator[Sequence[Any]], keep_alive_s: float, left: Callable[[], None] = lambda: None
) -> EventStream:
    """The events of a response as a stream. left: called when it has ended or its client has gone."""
    return EventStream(_frames(batches), keep_alive_s, left)


async def _frames(events: AsyncIterator[Sequence[Any]]) -> AsyncIterator[bytes]:
    async for batch in events:
        yield b"".join(map(frame, batch))
