"""POST /v1/responses, without storage: every request brings its whole conversation."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from engine.errors import CallerError
from server.http.body import BoundedRoute
from server.http.errors import Refusal
from server.protocol.openapi_responses import answers
from server.protocol.responses_answer import ResponseAnswer, ResponseEvent
from server.protocol.responses_request import ResponsesRequest
from server.requests.chat_template_options import template_options, thinking_after, thinking_budget
from server.requests.params import chat_params
from server.requests.responses_input import as_chat, own_name, template_items
from server.requests.structured_output import chat_form
from server.requests.tools import chat_tools
from server.service import answer, take_model, until_left
from server.writers.parsed_choice import ParsedChoice
from server.writers.reasoning import reasoning_splitter
from server.writers.responses import ResponseWriter
from server.writers.usage import TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/responses", response_model=None, responses=answers(ResponseAnswer, ResponseEvent))
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Answer a list of input items with a list of output items, whole or as a stream of named events."""
    service = await take_model(request, body.model)
    engine = service.engine
    chat = as_chat(body)
    options = template_options(body.chat_template_kwargs, body.reasoning.effort if body.reasoning else None)
    with _own_names():
        params = chat_params(chat, engine, service.settings)
        service.admit(1)
        tools = chat_tools(chat, service.tool_format)
        calls = None if tools is None else service.tool_format
        form = chat_form(chat, calls)
        prompt = await until_left(request, engine.chat_prompt(template_items(body), tools, options))
        thinking = thinking_after(prompt, engine)
        params = replace(params, thinking_budget=thinking_budget(body.thinking_token_budget, thinking, engine))
        params = await until_left(request, service.constrained(params, form, thinking))
    envelope = service.envelope("resp")
    stream = service.launch(envelope, [prompt], params, "input")
    count = TokenCount(stream.prompt_tokens, 1)
    choice = ParsedChoice(calls, reasoning_splitter(thinking.markers, thinking.is_open))
    writer = ResponseWriter(envelope, count, choice, body, params.logprobs)
    return await answer(request, stream, writer, bool(body.stream))


@contextmanager
def _own_names() -> Iterator[None]:
    """What is refused with a field of the chat route names the one of this route."""
    try:
        yield
    except CallerError as error:
        error.args, error.param = (_renamed(str(error), error.param),), own_name(error.param)
        raise
    except Refusal as refusal:
        wire = refusal.error
        raise Refusal(replace(wire, message=_renamed(wire.message, wire.param), param=own_name(wire.param))) from None


def _renamed(message: str, param: str | None) -> str:
    return message.replace(f"'{param}'", f"'{own_name(param)}'")
