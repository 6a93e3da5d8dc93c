"""POST /api/chat and POST /api/generate: Ollama's format over the chat route's own path."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from server.chats.own_names import own_names
from server.chats.prepared import PreparedChat, checked_chat, prepared_chat, prepared_text
from server.http.body import BoundedRoute
from server.http.ndjson import LINES
from server.models.models import find
from server.protocol.ollama.answers import OllamaChatAnswer, OllamaGenerateAnswer
from server.protocol.ollama.errors import OllamaError
from server.protocol.ollama.requests import OllamaChatRequest, OllamaGenerateRequest, OllamaGenerationBody
from server.protocol.openapi_responses import line_answers
from server.requests.ollama.generation import as_chat, chat_name, generate_name, think_options
from server.requests.ollama.keep_alive import kept_s
from server.requests.ollama.messages import check_prompt, prompt_turns, template_turns
from server.requests.ollama.names import served_name
from server.service import Service, answer, server_of, take_model
from server.writers.ollama.generation import OllamaWriter, Said, as_message, as_response
from server.writers.ollama.timing import Clock, Stopwatch
from server.writers.usage import TokenCount

router = APIRouter(route_class=BoundedRoute)


@dataclass(frozen=True, slots=True)
class _Arrival:
    """A request whose model is there. shown: the fields of its route that say what was said."""

    request: Request
    body: OllamaGenerationBody
    service: Service
    stopwatch: Stopwatch
    shown: Callable[[Said], dict[str, Any]]

    async def answered(self, chat: PreparedChat, field: str) -> Response:
        """Generate; `field` is what holds the prompt."""
        stream = self.service.launch(self.service.envelope("ollama"), [chat.prompt], chat.params, field)
        [choice] = chat.parsed_choices()
        writer = OllamaWriter(
            self.body.model,
            TokenCount(stream.prompt_tokens, 1),
            choice,
            self.shown,
            self.stopwatch,
            chat.params.logprobs,
        )
        return await answer(self.request, stream, writer, self.body.stream is not False, LINES)


async def _arrived(body: OllamaGenerationBody, request: Request, shown: Callable[[Said], dict[str, Any]]) -> _Arrival:
    """Wait until the model is there, and say how long it stays without another request."""
    clock = Clock()
    came_ns = clock.monotonic_ns()
    keep_s = kept_s(body.keep_alive)
    models = server_of(request).models.models
    name = served_name(models, body.model)
    service = await take_model(request, name)
    find(models, name).keep_s = keep_s
    return _Arrival(request, body, service, Stopwatch(clock, came_ns, clock.monotonic_ns()), shown)


async def _unloaded(body: OllamaGenerationBody, request: Request, shown: Callable[[Said], dict[str, Any]]) -> Response:
    """Let go of a model: at once, or when the requests that use it have ended. Refusal for one that always stays."""
    models = server_of(request).models
    model = find(models.models, served_name(models.models, body.model))
    if model.comes_and_goes and model.pins:
        model.keep_s = 0.0
    else:
        await models.unload(model)
    return _empty(body, shown, "unload")


def _empty(body: OllamaGenerationBody, shown: Callable[[Said], dict[str, Any]], reason: str) -> Response:
    """The answer to a request that says nothing to the model."""
    said = {"model": body.model, "created_at": Clock().stamp(), **shown(Said())}
    return JSONResponse({**said, "done": True, "done_reason": reason})


@router.post("/api/chat", response_model=None, responses=line_answers(OllamaChatAnswer, OllamaError))
async def create_ollama_chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, line by line or whole."""
    if not body.messages and kept_s(body.keep_alive) == 0:
        return await _unloaded(body, request, as_message)
    arrival = await _arrived(body, request, as_message)
    if not body.messages:
        return _empty(body, as_message, "load")
    service = arrival.service
    with own_names(chat_name):
        chat = as_chat(body, service.engine.info)
        checked = checked_chat(chat, service)
        turns, options = template_turns(body.messages), think_options(body.think)
        prepared = await prepared_chat(request, service, chat, checked, turns, options)
    return await arrival.answered(prepared, "messages")


@router.post("/api/generate", response_model=None, responses=line_answers(OllamaGenerateAnswer, OllamaError))
async def create_ollama_generation(body: OllamaGenerateRequest, request: Request) -> Response:
    """Answer a prompt, or continue it when it is raw or the model has no chat template."""
    if not body.prompt and kept_s(body.keep_alive) == 0:
        return await _unloaded(body, request, as_response)
    arrival = await _arrived(body, request, as_response)
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
    return await arrival.answered(prepared, "prompt")
