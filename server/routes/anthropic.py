"""POST /v1/messages and POST /v1/messages/count_tokens: Anthropic's format."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from engine.errors import ContextLengthExceeded
from server.chats.own_names import own_names
from server.chats.prepared import checked_chat, prepared_chat
from server.http.body import BoundedRoute
from server.http.error_formats import request_id_of
from server.http.errors import refuse
from server.http.pinged_events import PINGED_EVENTS
from server.protocol.anthropic.answer import MessageAnswer, MessageEvent, TokenCountAnswer
from server.protocol.anthropic.errors import AnthropicError
from server.protocol.anthropic.request import CountTokensRequest, MessagesRequest
from server.protocol.openapi_responses import message_answers, message_errors
from server.requests.anthropic.chat_body import conversation_chat, message_chat, own_name
from server.requests.anthropic.checks import check_fields
from server.requests.anthropic.thinking import shows_thoughts, thinking_options
from server.requests.anthropic.turns import template_turns
from server.requests.params import check_generates
from server.requests.tools import chat_tools
from server.service import answer, take_model, until_left
from server.writers.anthropic.message import MessageTerms, MessageWriter
from server.writers.usage import TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post(
    "/v1/messages",
    response_model=None,
    responses=message_answers(MessageAnswer, MessageEvent, AnthropicError),
)
async def create_message(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of named events."""
    service = await take_model(request, body.model, check_generates)
    check_fields(body)
    chat = message_chat(body)
    with _own_words():
        checked = checked_chat(chat, service)
        prepared = await prepared_chat(request, service, chat, checked, template_turns(body), thinking_options(body))
    room = service.engine.info.max_context - len(prepared.prompt)
    params = replace(prepared.params, max_tokens=min(body.max_tokens, room))
    envelope = service.envelope("msg")
    stream = service.launch(envelope, [prepared.prompt], params, "messages")
    count = TokenCount(stream.prompt_tokens, 1)
    [choice] = prepared.parsed_choices()
    terms = MessageTerms(
        stop_sequences=tuple(body.stop_sequences or ()),
        is_window_bound=body.max_tokens > room,
        shows_thoughts=shows_thoughts(body),
        request_id=request_id_of(request.scope),
    )
    writer = MessageWriter(envelope, count, choice, terms)
    return await answer(request, stream, writer, bool(body.stream), PINGED_EVENTS)


@router.post("/v1/messages/count_tokens", responses=message_errors(AnthropicError))
async def count_tokens(body: CountTokensRequest, request: Request) -> TokenCountAnswer:
    """The tokens of the prompt that /v1/messages would make of the same fields."""
    service = await take_model(request, body.model, check_generates)
    with _own_words():
        tools = chat_tools(conversation_chat(body), service.writes)
        work = service.engine.chat_prompt(template_turns(body), tools, thinking_options(body))
        return TokenCountAnswer(input_tokens=len(await until_left(request, work)))


@contextmanager
def _own_words() -> Iterator[None]:
    """Refusals name this format's fields; clients know a prompt that is too long by Anthropic's own sentence."""
    try:
        with own_names(own_name):
            yield
    except ContextLengthExceeded as error:
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.limit - 1} maximum"
        raise refuse(message, "messages", error.code) from None
