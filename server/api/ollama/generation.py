"""POST /api/chat and POST /api/generate: Ollama's format over the chat route's own path."""

import time
from functools import partial

from fastapi import APIRouter, Request, Response

from server.api.body import UntypedRoute
from server.api.ollama.answers import (
    DoneReason,
    LineOf,
    OllamaChatAnswer,
    OllamaGenerateAnswer,
    OllamaWriter,
    Said,
    chat_line,
    generate_line,
    stamp,
)
from server.api.ollama.requests import OllamaChatRequest, OllamaGenerateRequest, OllamaGenerationBody
from server.api.ollama.translation import (
    LoadedModel,
    as_chat,
    chat_name,
    check_prompt,
    fitted,
    generate_name,
    kept_s,
    load_model,
    prompt_turns,
    template_turns,
    think_options,
    unload_model,
)
from server.api.openapi import LINES, answers
from server.generation import framing
from server.generation.answers import TokenCount
from server.generation.launch import answer, any_model, written
from server.generation.params import check_generates
from server.generation.prepare import PreparedChat, field_aliases, prepared_chat, prepared_text
from server.http.error_formats import OllamaError

router = APIRouter(route_class=UntypedRoute)
line_answers = partial(answers, stream=LINES, model=OllamaError)


@router.post("/api/chat", responses=line_answers(OllamaChatAnswer, OllamaChatAnswer))
async def create_ollama_chat(body: OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, line by line or whole."""
    messages = body.messages or []
    loaded = await _loaded(request, body, bool(messages), chat_line)
    if isinstance(loaded, Response):
        return loaded
    service = loaded.service
    with field_aliases(chat_name):
        chat = as_chat(body, service.engine.info)
        prepared = await prepared_chat(
            request, service, chat, lambda: template_turns(messages), think_options(body.think)
        )
    return await _answered(request, body, loaded, prepared, chat_line, "messages")


@router.post("/api/generate", responses=line_answers(OllamaGenerateAnswer, OllamaGenerateAnswer))
async def create_ollama_generation(body: OllamaGenerateRequest, request: Request) -> Response:
    """Answer a prompt, or continue it when it is raw or the model has no chat template."""
    prompt = body.prompt or ""
    loaded = await _loaded(request, body, bool(prompt), generate_line)
    if isinstance(loaded, Response):
        return loaded
    service = loaded.service
    is_raw = check_prompt(body, service.engine.text_facts)
    with field_aliases(generate_name):
        chat = as_chat(body, service.engine.info)
        if is_raw:
            prepared = await prepared_text(request, service, chat, prompt)
        else:
            prepared = await prepared_chat(
                request, service, chat, lambda: prompt_turns(body), think_options(body.think)
            )
    return await _answered(request, body, loaded, prepared, generate_line, "prompt")


async def _loaded(
    request: Request, body: OllamaGenerationBody, is_asked: bool, line_of: LineOf
) -> LoadedModel | Response:
    """The model; a request that says nothing to it is answered, once that is loaded, or unloaded if it may not stay."""
    reason: DoneReason = "load"
    if not is_asked and kept_s(body.keep_alive) == 0:
        await unload_model(request, body.model)
        reason = "unload"
    else:
        check = check_generates if is_asked else any_model
        loaded = await load_model(request, body.model, body.keep_alive, check)
        if is_asked:
            return loaded
    line = line_of(body.model, stamp(time.time_ns()), Said())
    line.done, line.done_reason = True, reason
    return written(line)


async def _answered(
    request: Request, body: OllamaGenerationBody, loaded: LoadedModel, chat: PreparedChat, line_of: LineOf, field: str
) -> Response:
    """Generate. line_of: a line of the route. field: what has the prompt."""
    service = loaded.service
    params = fitted(chat.params, len(chat.prompt), service.engine.info.max_context)
    stream = service.launch(service.envelope("ollama"), [chat.prompt], params, field)
    [choice] = chat.parsed_choices()
    count = TokenCount(stream.prompt_tokens, 1)
    writer = OllamaWriter(body.model, count, choice, line_of, loaded.stopwatch, chat.params.logprobs)
    return await answer(request, stream, writer, body.stream is not False, framing.LINES)
