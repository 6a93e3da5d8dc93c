"""POST /v1/chat/completions."""

from dataclasses import replace

from fastapi import APIRouter, Request, Response

from server.chats.prepared import checked_chat, prepared_chat
from server.http.body import BoundedRoute
from server.protocol.chat_answer import ChatChunk, ChatCompletion
from server.protocol.chat_request import ChatRequest
from server.protocol.openapi_responses import answers
from server.requests.chat_template_options import template_options
from server.requests.messages import template_messages
from server.requests.params import check_generates
from server.service import answer, take_model
from server.writers.chat import ChatWriter
from server.writers.usage import StreamUsage, TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion, ChatChunk))
async def create_chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    service = await take_model(request, body.model, check_generates)
    checked = checked_chat(body, service)
    messages = template_messages(body.messages)
    options = template_options(body.chat_template_kwargs, body.reasoning_effort, body.add_generation_prompt)
    chat = await prepared_chat(request, service, body, checked, messages, options)
    envelope = replace(service.envelope("chatcmpl"), names_tier=body.service_tier is not None)
    stream = service.launch(envelope, [chat.prompt], chat.params, "messages")
    count = TokenCount(stream.prompt_tokens, chat.params.choices, body.prediction is not None)
    usage = StreamUsage(count, body.stream_options)
    writer = ChatWriter(envelope, count, chat.parsed_choices(), chat.params.logprobs, usage)
    return await answer(request, stream, writer, bool(body.stream))
