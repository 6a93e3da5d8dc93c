"""POST /v1/chat/completions."""

from dataclasses import replace

from fastapi import APIRouter, Request, Response

from server.http.body import BoundedRoute
from server.protocol.chat_answer import ChatChunk, ChatCompletion
from server.protocol.chat_request import ChatRequest
from server.protocol.openapi_responses import answers
from server.requests.chat_template_options import template_options, thinking_after, thinking_budget
from server.requests.messages import template_messages
from server.requests.params import chat_params
from server.requests.prediction import predicted_tokens
from server.requests.structured_output import chat_form
from server.requests.tools import chat_tools
from server.service import answer, take_model, until_left
from server.writers.chat import ChatWriter
from server.writers.parsed_choice import ParsedChoice
from server.writers.reasoning import reasoning_splitter
from server.writers.usage import StreamUsage, TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/chat/completions", response_model=None, responses=answers(ChatCompletion, ChatChunk))
async def create_chat(body: ChatRequest, request: Request) -> Response:
    """Answer a conversation, whole or as a stream of events."""
    service = await take_model(request, body.model)
    engine = service.engine
    params = chat_params(body, engine, service.settings)
    service.admit(params.choices)
    tools = chat_tools(body, service.tool_format)
    calls = None if tools is None else service.tool_format
    form = chat_form(body, calls)
    messages = template_messages(body.messages)
    options = template_options(body.chat_template_kwargs, body.reasoning_effort, body.add_generation_prompt)
    prompt = await until_left(request, engine.chat_prompt(messages, tools, options, params.keep))
    prediction = await until_left(request, predicted_tokens(body.prediction, engine))
    thinking = thinking_after(prompt, engine)
    budget = thinking_budget(body.thinking_token_budget, thinking, engine)
    params = replace(params, thinking_budget=budget, prediction=prediction)
    params = await until_left(request, service.constrained(params, form, thinking))
    envelope = replace(service.envelope("chatcmpl"), names_tier=body.service_tier is not None)
    stream = service.launch(envelope, [prompt], params, "messages")
    count = TokenCount(stream.prompt_tokens, params.choices, body.prediction is not None)
    usage = StreamUsage(count, body.stream_options)
    choices = [
        ParsedChoice(calls, reasoning_splitter(thinking.markers, thinking.is_open)) for _ in range(params.choices)
    ]
    writer = ChatWriter(envelope, count, choices, params.logprobs, usage)
    return await answer(request, stream, writer, bool(body.stream))
