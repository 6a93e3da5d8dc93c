"""POST /v1/responses: an answer as a list of items, stored or not, at once or in the background."""

import msgspec
from fastapi import APIRouter, Request, Response

from server.chats.own_names import own_names
from server.chats.prepared import checked_chat, prepared_chat
from server.http.body import BoundedRoute
from server.protocol.openapi_responses import answers
from server.protocol.responses_answer import ResponseAnswer, ResponseEvent
from server.protocol.responses_request import ResponsesRequest
from server.requests.params import check_generates
from server.requests.responses_input import as_chat, given_items, own_name, response_options, template_items
from server.requests.responses_storage import check_count, items_of, stored_items, storing
from server.requests.responses_tools import tool_identities
from server.service import answer, resumption_of, take_model, until_left
from server.stored.access import caller_key, previous_of, stored_of
from server.stored.event_stream import EventStream
from server.stored.record import ResponseRecord
from server.stored.run import ResponseRun
from server.stored.status import ResponseStatus
from server.writers.responses import ResponseWriter, response_object
from server.writers.usage import TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/responses", response_model=None, responses=answers(ResponseAnswer, ResponseEvent))
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answer a list of input items with a list of output items, whole or as a stream of named events."""
    stored = stored_of(request)
    wanted = storing(body, stored is not None, resumption_of(request) is not None)
    before = await previous_of(request, wanted.previous)
    items = [*items_of(before), *given_items(body)]
    check_count(items)
    service = await take_model(request, body.model, check_generates)
    with own_names(own_name):
        chat = as_chat(body)
        checked = checked_chat(chat, service)
        messages = template_items(body.instructions, items)
        prepared = await prepared_chat(request, service, chat, checked, messages, response_options(body))
    envelope = service.envelope("resp")
    stream = service.launch(envelope, [prepared.prompt], prepared.params, "input")
    count = TokenCount(stream.prompt_tokens, 1)
    [choice] = prepared.parsed_choices()
    response = response_object(envelope, body, wanted)
    known_events = 0 if service.resumption is None else service.resumption.events
    writer = ResponseWriter(response, count, choice, prepared.params.logprobs, tool_identities(body), known_events)
    if stored is None or not wanted.is_kept:
        return await answer(request, stream, writer, bool(body.stream))
    status = ResponseStatus.QUEUED if wanted.is_background else ResponseStatus.IN_PROGRESS
    key, begun = caller_key(request, envelope.id), response | {"status": status}
    given = stored_items(given_items(body))
    record = ResponseRecord(key, wanted.previous, status, wanted.is_background, begun, given)
    run = await stored.start(record, stream, writer, [one.key.id for one in before], service.pinned())
    return await _stored_answer(request, run, bool(body.stream), service.settings.keep_alive_s)


async def _stored_answer(request: Request, run: ResponseRun, is_stream: bool, keep_alive_s: float) -> Response:
    """As `answer`: until the first delta an error still has its HTTP status. In the background nobody has to stay."""
    if run.is_background:
        return EventStream(run.events(), keep_alive_s) if is_stream else _whole(run)
    try:
        await until_left(request, run.first(keep_alive_s) if is_stream else run.ended())
        if run.failure is not None and not (is_stream and run.has_said):
            raise run.failure
    except BaseException:
        run.cancel()
        raise
    return EventStream(run.events(), keep_alive_s, left=run.cancel) if is_stream else _whole(run)


def _whole(run: ResponseRun) -> Response:
    return Response(msgspec.json.encode(run.response), media_type="application/json")
