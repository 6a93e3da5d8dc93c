"""POST /v1/messages and POST /v1/messages/count_tokens: Anthropic's format."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from fastapi import APIRouter, Request, Response

from engine.errors import ContextLengthExceeded
from server.api.anthropic import translation
from server.api.anthropic.message import MessageAnswer, MessageEvent, MessageWriter, TokenCountAnswer
from server.api.anthropic.request import CountTokensRequest, MessagesRequest
from server.api.body import BoundedRoute
from server.api.openapi import MESSAGE_ERRORS, MESSAGES, answers
from server.generation.answers import TokenCount
from server.generation.chat_template import chat_tools
from server.generation.framing import PINGED_EVENTS
from server.generation.launch import answer, field_aliases, prepared_chat, take_model, until_left, written
from server.generation.params import check_generates
from server.http.errors import AnthropicError, refuse, request_id_of

router = APIRouter(route_class=BoundedRoute)
message_answers = partial(answers, stream=MESSAGES, statuses=MESSAGE_ERRORS, model=AnthropicError)


@router.post("/v1/messages", responses=message_answers(MessageAnswer, MessageEvent))
async def create_message(body: MessagesRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of named events."""
    service = await take_model(request, body.model, check_generates)
    translation.check_fields(body)
    chat, options = translation.message_chat(body), translation.thinking_options(body)
    with _own_words():
        prepared = await prepared_chat(request, service, chat, lambda: translation.template_turns(body), options)
    room = service.engine.info.max_context - len(prepared.prompt)
    params = replace(prepared.params, max_tokens=min(body.max_tokens, room))
    envelope = service.envelope("msg_")
    stream = service.launch(envelope, [prepared.prompt], params, "messages")
    [choice] = prepared.parsed_choices()
    stops, shows_thoughts = tuple(body.stop_sequences or ()), translation.shows_thoughts(body)
    terms = (stops, body.max_tokens > room, shows_thoughts, request_id_of(request.scope))
    writer = MessageWriter(TokenCount(stream.prompt_tokens, 1), choice, envelope, *terms)
    return await answer(request, stream, writer, bool(body.stream), PINGED_EVENTS)


@router.post("/v1/messages/count_tokens", responses=message_answers(TokenCountAnswer))
async def count_tokens(body: CountTokensRequest, request: Request) -> Response:
    """The tokens of the prompt that /v1/messages would make of the same fields."""
    service = await take_model(request, body.model, check_generates)
    with _own_words():
        tools = chat_tools(translation.conversation_chat(body), service.writes)
        work = service.chat_prompt(translation.template_turns(body), tools, translation.thinking_options(body))
        return written(TokenCountAnswer(len(await until_left(request, work))))


@contextmanager
def _own_words() -> Iterator[None]:
    """Refusals name this format's fields; clients know a prompt that is too long by Anthropic's own sentence."""
    try:
        with field_aliases(translation.own_name):
            yield
    except ContextLengthExceeded as error:
        message = f"prompt is too long: {error.prompt_tokens} tokens > {error.limit - 1} maximum"
        raise refuse(message, "messages", error.code) from None
