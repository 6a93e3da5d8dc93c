"""POST /v1/responses, and /v1/responses/{id}: read, delete and cancel stored responses, list what they answered."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import msgspec
from fastapi import APIRouter, Request, Response

from server.api.body import BoundedRoute
from server.api.openai import response_input as given
from server.api.openai.response_answer import DeletedResponse, InputTokens, ResponseAnswer, ResponseEvent, ResponseItems
from server.api.openai.response_request import InputItem, ResponsesRequest
from server.api.openai.response_runs import NotHere, ResponseRun, StoredResponses
from server.api.openai.response_writer import ResponseWriter, response_object
from server.api.openapi import answers
from server.generation import launch
from server.generation.answers import TokenCount
from server.generation.chat_template import chat_tools
from server.generation.framing import EventStream, frame
from server.generation.launch import answer, server_of, take_model, until_left, written
from server.generation.params import check_generates
from server.http.errors import echo, refuse
from server.http.fields import MAX_MESSAGES
from server.middleware.auth import Caller
from server.stored_responses import database
from server.stored_responses.database import ResponseKey, ResponseRecord, ResponseStatus

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/responses", responses=answers(ResponseAnswer, ResponseEvent))
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answer a list of input items with a list of output items, whole or as a stream of named events."""
    stored, own = _stored_of(request), given.given_items(body)
    wanted = given.storing(body, stored is not None, launch.resumption_of(request) is not None)
    before = await _previous_of(request, wanted.previous)
    turns = _turns(body, before, own)
    service = await take_model(request, body.model, check_generates)
    with launch.field_aliases(given.own_name):
        chat, options = given.as_chat(body), given.response_options(body)
        prepared = await launch.prepared_chat(request, service, chat, turns, options)
    envelope = service.envelope("resp_")
    stream = service.launch(envelope, [prepared.prompt], prepared.params, "input")
    [choice] = prepared.parsed_choices()
    response = response_object(envelope, body, wanted, prepared.params)
    known_events = 0 if service.resumption is None else service.resumption.events
    names = {who.shown: who for who, _, _ in given.named_tools(body)}
    count, alternatives = TokenCount(stream.prompt_tokens, 1), prepared.params.each.logprobs
    writer = ResponseWriter(count, choice, response, alternatives, names, known_events)
    if stored is None or not wanted.is_kept:
        return await answer(request, stream, writer, bool(body.stream))
    status = ResponseStatus.QUEUED if wanted.is_background else ResponseStatus.IN_PROGRESS
    key, begun = _caller_key(request, envelope.id), msgspec.structs.replace(response, status=status.value)
    items = [given.stored_item(item) for item in own]
    record = ResponseRecord(key, wanted.previous, status, wanted.is_background, begun, items)
    run = await stored.start(record, stream, writer, [one.key.id for one in before], service.pinned())
    return await _stored_answer(request, run, bool(body.stream), service.settings.keep_alive_s)


@router.post("/v1/responses/input_tokens", responses=answers(InputTokens))
async def count_input_tokens(body: ResponsesRequest, request: Request) -> Response:
    """The tokens of the prompt that /v1/responses would make of the same fields."""
    before = await _previous_of(request, given.storing(body, _stored_of(request) is not None).previous)
    turns = _turns(body, before, given.given_items(body))
    service = await take_model(request, body.model, check_generates)
    with launch.field_aliases(given.own_name):
        tools = chat_tools(given.as_chat(body), service.writes)
        work = service.chat_prompt(turns(), tools, given.response_options(body))
        return written(InputTokens(input_tokens=len(await until_left(request, work))))


def _turns(
    body: ResponsesRequest, before: Sequence[ResponseRecord], own: Sequence[InputItem]
) -> Callable[[], list[dict[str, Any]]]:
    """What a chat template reads, made once it is asked for; Refusal of too many items. own: the last of them."""
    items = [*given.items_of(before), *own]
    if len(items) > MAX_MESSAGES:
        message = f"The conversation has {len(items)} items; {MAX_MESSAGES} are allowed."
        raise refuse(message, "input", "array_above_max_length")
    return lambda: given.template_items(body.instructions, items, len(own))


def _stored_of(request: Request) -> StoredResponses | None:
    return cast("StoredResponses | None", request.app.state.stored)


def _caller_key(request: Request, id: str) -> ResponseKey:
    caller: Caller = request.scope["state"]["caller"]
    return ResponseKey(caller.owner, id)


async def _previous_of(request: Request, id: str | None) -> Sequence[ResponseRecord]:
    """The responses that a request follows, the first one first. Refusal naming `previous_response_id`."""
    stored, param = _stored_of(request), "previous_response_id"
    if id is None or stored is None:
        return ()
    key, most = _caller_key(request, id), request.app.state.body_limits.size_bytes
    try:
        return await stored.store.ask(database.Database.conversation, key, most)
    except database.NotStored as missing:
        message = f"Previous response with id {echo(missing.id)} not found."
        raise refuse(message, param, "previous_response_not_found", 404) from None
    except database.NotContinuable as error:
        raise refuse(str(error), param, "invalid_value") from None


async def _stored_answer(request: Request, run: ResponseRun, is_stream: bool, keep_alive_s: float) -> Response:
    """As `answer`: until the first delta an error still has its HTTP status. In the background nobody has to stay."""
    if run.is_background:
        return EventStream(_frames(run.events()), keep_alive_s) if is_stream else written(run.writer.response)
    try:
        await until_left(request, run.first(keep_alive_s) if is_stream else run.ended())
        if run.failure is not None and not (is_stream and run.has_said):
            raise run.failure
    except BaseException:
        run.cancel()
        raise
    return EventStream(_frames(run.events()), keep_alive_s, run.cancel) if is_stream else written(run.writer.response)


PATH = "/v1/responses/{response_id}"
stored_answers = partial(answers, statuses=(400, 404, 409, 500))


def _query(kind: type[given.StoredQuery]) -> dict[str, Any]:
    fields = kind.model_json_schema()["properties"]
    return {"parameters": [{"in": "query", "name": name, "schema": schema} for name, schema in fields.items()]}


@router.get(PATH, responses=stored_answers(ResponseAnswer, ResponseEvent), openapi_extra=_query(given.EventsQuery))
async def get_response(response_id: str, request: Request) -> Response:
    """A response as it is now; with `stream=true` the events of one in the background, behind `starting_after`."""
    query = given.read_query(given.EventsQuery, request.query_params)
    if query.starting_after is not None and not query.stream:
        raise refuse("'starting_after' is only allowed when 'stream' is true.", "starting_after", "invalid_value")
    with _asked(request, response_id) as (stored, key):
        record = await stored.get(key)
        if not query.stream:
            return written(record.response)
        if not record.is_background:
            message = "Only a response that was created with 'background' true can be streamed again."
            raise refuse(message, "stream", "invalid_value")
        events = await stored.events(key, -1 if query.starting_after is None else query.starting_after)
        return EventStream(_frames(events), server_of(request).settings.keep_alive_s)


@router.delete(PATH, responses=stored_answers(DeletedResponse))
async def delete_response(response_id: str, request: Request) -> Response:
    """Remove a response; one that is being generated ends."""
    with _asked(request, response_id) as (stored, key):
        await stored.delete(key)
    return written(DeletedResponse(id=response_id))


@router.post(PATH + "/cancel", responses=stored_answers(ResponseAnswer))
async def cancel_response(response_id: str, request: Request) -> Response:
    """Cancel a response in the background; one that has ended is answered as it is."""
    with _asked(request, response_id) as (stored, key):
        if not (await stored.get(key)).is_background:
            raise refuse("Cannot cancel a synchronous response.", "response_id", "invalid_value")
        return written((await stored.cancel(key)).response)


@router.get(PATH + "/input_items", responses=stored_answers(ResponseItems), openapi_extra=_query(given.ItemsQuery))
async def list_input_items(response_id: str, request: Request) -> Response:
    """What a response answered: the items of its own request and of the responses before it."""
    page = given.read_query(given.ItemsQuery, request.query_params)
    with _asked(request, response_id) as (stored, key):
        record = await stored.get(key)
        before = await stored.history(record)
    return written(given.item_page([*given.listed_items(before), *record.input], page))


@contextmanager
def _asked(request: Request, response_id: str) -> Iterator[tuple[StoredResponses, ResponseKey]]:
    """What a path names. Refusal 404 for what is not stored, 409 for what another server generates."""
    stored = _stored_of(request)
    if stored is None:
        raise refuse(f"Response with id {echo(response_id)} not found: {given.OFF}.", "response_id", status=404)
    try:
        yield stored, _caller_key(request, response_id)
    except database.NotStored:
        message = f"Response with id {echo(response_id)} not found."
        raise refuse(message, "response_id", status=404) from None
    except NotHere:
        message = f"The response {echo(response_id)} is being generated by another server of this data folder"
        raise refuse(f"{message}: ask that one.", "response_id", "invalid_value", 409) from None


async def _frames(batches: AsyncIterator[Sequence[Any]]) -> AsyncIterator[bytes]:
    async for batch in batches:
        yield b"".join(map(frame, batch))
