"""POST /api/chat and POST /api/generate: Ollama's format over the chat route's own path."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.chats.arrival import Arrival, arrived, dismissed
from server.chats.own_names import own_names
from server.chats.prepared import PreparedChat, checked_chat, prepared_chat, prepared_text
from server.http.body import UntypedRoute
from server.http.ndjson import LINES
from server.protocol.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer
from server.protocol.ollama.errors import OllamaError
from server.protocol.ollama.requests import OllamaChatRequest, OllamaGenerateRequest, OllamaGenerationBody
from server.protocol.openapi_responses import line_answers
from server.requests.ollama.generation import as_chat, chat_name, fitted, generate_name, think_options
from server.requests.ollama.keep_alive import kept_s
from server.requests.ollama.messages import check_prompt, prompt_turns, template_turns
from server.requests.params import check_generates
from server.service import answer, any_model
from server.writers.ollama.generation import OllamaWriter, Said, as_message, as_response
from server.writers.ollama.timing import Clock
from server.writers.usage import TokenCount

router = APIRouter(route_class=UntypedRoute)
Shown = Callable[[Said], dict[str, Any]]


@router.post("/api/chat", response_model=None, responses=line_answers(OllamaChatAnswer, OllamaError))
async def create_ollama_chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, line by line or whole."""
    if not body.messages and kept_s(body.keep_alive) == 0:
        await dismissed(request, body.model)
        return _empty(body, as_message, "unload")
    arrival = await arrived(request, body.model, body.keep_alive, check_generates if body.messages else any_model)
    if not body.messages:
        return _empty(body, as_message, "load")
    service = arrival.service
    with own_names(chat_name):
        chat = as_chat(body, service.engine.info)
        checked = checked_chat(chat, service)
        turns, options = template_turns(body.messages), think_options(body.think)
        prepared = await prepared_chat(request, service, chat, checked, turns, options)
    return await _answered(request, body, arrival, prepared, as_message, "messages")


@router.post("/api/generate", response_model=None, responses=line_answers(OllamaGenerateAnswer, OllamaError))
async def create_ollama_generation(body: OllamaGenerateRequest, request: Request) -> Response:
    """Answer a prompt, or continue it when it is raw or the model has no chat template."""
    if not body.prompt and kept_s(body.keep_alive) == 0:
        await dismissed(request, body.model)
        return _empty(body, as_response, "unload")
    arrival = await arrived(request, body.model, body.keep_alive, check_generates if body.prompt else any_model)
    if not body.prompt:
        return _empty(body, as_response, "load")
    service = arrival.service
    is_raw = check_prompt(body, service.engine.text_facts)
    with own_names(generate_name):
        chat = as_chat(body, service.engine.info)
        checked = checked_chat(chat, service)
        if is_raw:
            prepared = await prepared_text(request, service, checked, body.prompt)
        else:
            prepared = await prepared_chat(
                request, service, chat, checked, prompt_turns(body), think_options(body.think)
            )
    return await _answered(request, body, arrival, prepared, as_response, "prompt")


async def _answered(
    request: Request, body: OllamaGenerationBody, arrival: Arrival, chat: PreparedChat, shown: Shown, field: str
) -> Response:
    """Generate. shown: the fields of the route that say what was said. field: what holds the prompt."""
    service = arrival.service
    params = fitted(chat.params, len(chat.prompt), service.engine.info.max_context)
    stream = service.launch(service.envelope("ollama"), [chat.prompt], params, field)
    [choice] = chat.parsed_choices()
    count = TokenCount(stream.prompt_tokens, 1)
    writer = OllamaWriter(body.model, count, choice, shown, arrival.stopwatch, chat.params.logprobs)
    return await answer(request, stream, writer, body.stream is not False, LINES)


def _empty(body: OllamaGenerationBody, shown: Shown, reason: str) -> Response:
    """The answer to a request that says nothing to the model."""
    said = {"model": body.model, "created_at": Clock().stamp(), **shown(Said())}
    return JSONResponse({**said, "done": True, "done_reason": reason})
