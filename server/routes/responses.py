"""POST /v1/responses, without storage: every request brings its whole conversation."""

from fastapi import APIRouter, Request, Response

from server.chats.own_names import own_names
from server.chats.prepared import checked_chat, prepared_chat
from server.http.body import BoundedRoute
from server.protocol.openapi_responses import answers
from server.protocol.responses_answer import ResponseAnswer, ResponseEvent
from server.protocol.responses_request import ResponsesRequest
from server.requests.chat_template_options import template_options
from server.requests.responses_input import as_chat, own_name, template_items
from server.service import answer, take_model
from server.writers.responses import ResponseWriter
from server.writers.usage import TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/responses", response_model=None, responses=answers(ResponseAnswer, ResponseEvent))
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answer a list of input items with a list of output items, whole or as a stream of named events."""
    service = await take_model(request, body.model)
    chat = as_chat(body)
    options = template_options(body.chat_template_kwargs, body.reasoning.effort if body.reasoning else None)
    with own_names(own_name):
        checked = checked_chat(chat, service)
        prepared = await prepared_chat(request, service, chat, checked, template_items(body), options)
    envelope = service.envelope("resp")
    stream = service.launch(envelope, [prepared.prompt], prepared.params, "input")
    count = TokenCount(stream.prompt_tokens, 1)
    [choice] = prepared.parsed_choices()
    writer = ResponseWriter(envelope, count, choice, body, prepared.params.logprobs)
    return await answer(request, stream, writer, bool(body.stream))
