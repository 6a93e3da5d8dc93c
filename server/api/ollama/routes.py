"""Ollama's routes that ask a model: POST /api/chat and /api/generate, over the chat route's path, and /api/embed."""

import time
from functools import partial

from fastapi import APIRouter, Request, Response

from engine.client.pooling import finished
from engine.request import Pooling
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
from server.api.ollama.requests import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaGenerationBody,
)
from server.api.ollama.translation import (
    LoadedModel,
    as_chat,
    as_embedding,
    chat_name,
    check_prompt,
    embed_name,
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
from server.generation.launch import Pooled, answer, any_model, until_left, written, written_aside
from server.generation.params import (
    EmbeddingRequest,
    check_dimensions,
    check_generates,
    embedding_inputs,
    embedding_spec,
)
from server.generation.prepare import PreparedChat, field_aliases, prepared_chat, prepared_text
from server.http.errors import OllamaError
from server.http.fields import Answer


class OllamaEmbedAnswer(Answer):
    """Answer of POST /api/embed: a vector of length 1 for each text, and durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(Answer):
    embedding: list[float]


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
    stream = service.launch(service.envelope("ollama-"), [chat.prompt], params, field)
    [choice] = chat.parsed_choices()
    count = TokenCount(stream.prompt_tokens, 1)
    writer = OllamaWriter(body.model, count, choice, line_of, loaded.stopwatch, chat.params.logprobs)
    return await answer(request, stream, writer, body.stream is not False, framing.LINES)


@router.post("/api/embed", responses=answers(OllamaEmbedAnswer, model=OllamaError))
async def create_ollama_embed(body: OllamaEmbedRequest, request: Request) -> Response:
    """The vector of one text or of many."""
    loaded = await load_model(request, body.model, body.keep_alive, embedding_spec)
    spec = embedding_spec(loaded.service.engine.info.manifest)
    check_dimensions(body.dimensions, spec)
    pooled = await _pooled(request, loaded, as_embedding(body))

    def made() -> OllamaEmbedAnswer:
        vectors = [finished(raw, spec, body.dimensions).tolist() for raw in pooled.vectors]
        took = loaded.stopwatch.durations(time.perf_counter_ns(), None)
        return OllamaEmbedAnswer(body.model, vectors, took["total_duration"], took["load_duration"], pooled.tokens)

    return await written_aside(made)


@router.post("/api/embeddings", responses=answers(OllamaEmbeddingsAnswer, model=OllamaError))
async def create_ollama_embedding(body: OllamaEmbeddingsRequest, request: Request) -> Response:
    """The vector of one text, as older clients ask for it."""
    loaded = await load_model(request, body.model, body.keep_alive, embedding_spec)
    spec = embedding_spec(loaded.service.engine.info.manifest)
    with field_aliases(embed_name):
        pooled = await _pooled(request, loaded, as_embedding(body))
    return await written_aside(lambda: OllamaEmbeddingsAnswer(finished(pooled.vectors[0], spec).tolist()))


async def _pooled(request: Request, loaded: LoadedModel, body: EmbeddingRequest) -> Pooled:
    service = loaded.service
    inputs = embedding_inputs(body, service.engine.info)
    return await until_left(request, service.pooled(service.envelope("ollama-"), inputs, Pooling(), 0))
