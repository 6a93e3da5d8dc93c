"""Ollama's routes that ask a model: POST /api/chat and /api/generate, over the chat route's path, and /api/embed."""

import time
from functools import partial

from fastapi import APIRouter, Request, Response

from engine.client.pooling import finished
from engine.request import Pooling
from server.api.body import UntypedRoute
from server.api.ollama import requests as given
from server.api.ollama import translation
from server.api.ollama.answers import LineKind, OllamaChatAnswer, OllamaGenerateAnswer, OllamaWriter, Said, Stopwatch
from server.api.openapi import LINES, answers
from server.generation import framing, launch
from server.generation.answers import TokenCount
from server.generation.launch import PreparedChat, Service, answer, any_model, field_aliases, until_left, written
from server.generation.params import check_dimensions, check_generates, embedding_inputs, embedding_spec
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
Loaded = tuple[Service, Stopwatch]


@router.post("/api/chat", responses=line_answers(OllamaChatAnswer, OllamaChatAnswer))
async def create_ollama_chat(body: given.OllamaChatRequest, request: Request) -> Response:
    """Answer a conversation, line by line or whole."""
    messages = body.messages or []
    loaded = await _loaded(request, body, bool(messages), OllamaChatAnswer)
    if isinstance(loaded, Response):
        return loaded
    service, options = loaded[0], translation.think_options(body.think)
    with field_aliases(translation.chat_name):
        chat = translation.as_chat(body, service.engine.info)
        turns = partial(translation.template_turns, messages)
        prepared = await launch.prepared_chat(request, service, chat, turns, options)
    return await _answered(request, body, loaded, prepared, OllamaChatAnswer, "messages")


@router.post("/api/generate", responses=line_answers(OllamaGenerateAnswer, OllamaGenerateAnswer))
async def create_ollama_generation(body: given.OllamaGenerateRequest, request: Request) -> Response:
    """Answer a prompt, or continue it when it is raw or the model has no chat template."""
    prompt = body.prompt or ""
    loaded = await _loaded(request, body, bool(prompt), OllamaGenerateAnswer)
    if isinstance(loaded, Response):
        return loaded
    service, options = loaded[0], translation.think_options(body.think)
    is_raw = translation.check_prompt(body, service.engine.text_facts)
    with field_aliases(translation.generate_name):
        chat = translation.as_chat(body, service.engine.info)
        if is_raw:
            prepared = await launch.prepared_text(request, service, chat, prompt)
        else:
            turns = partial(translation.prompt_turns, body)
            prepared = await launch.prepared_chat(request, service, chat, turns, options)
    return await _answered(request, body, loaded, prepared, OllamaGenerateAnswer, "prompt")


async def _loaded(
    request: Request, body: given.OllamaGenerationBody, is_asked: bool, kind: LineKind
) -> Loaded | Response:
    """The model; a request that says nothing to it is answered, once that is loaded, or unloaded if it may not stay."""
    is_over = not is_asked and translation.kept_s(body.keep_alive) == 0
    if is_over:
        await translation.unload_model(request, body.model)
    else:
        check = check_generates if is_asked else any_model
        loaded = await translation.load_model(request, body.model, body.keep_alive, check)
        if is_asked:
            return loaded
    line = kind.of(body.model, Said())
    line.done, line.done_reason = True, "unload" if is_over else "load"
    return written(line)


async def _answered(
    request: Request, body: given.OllamaGenerationBody, loaded: Loaded, chat: PreparedChat, kind: LineKind, field: str
) -> Response:
    """Generate. kind: of the route's lines. field: what has the prompt."""
    service, stopwatch = loaded
    params = translation.fitted(chat.params, len(chat.prompt), service.engine.info.max_context)
    stream = service.launch(service.envelope("ollama-"), [chat.prompt], params, field)
    [choice] = chat.parsed_choices()
    count = TokenCount(stream.prompt_tokens, 1)
    writer = OllamaWriter(body.model, count, choice, kind, stopwatch, chat.params.each.logprobs)
    return await answer(request, stream, writer, body.stream is not False, framing.LINES)


@router.post("/api/embed", responses=answers(OllamaEmbedAnswer, model=OllamaError))
async def create_ollama_embed(body: given.OllamaEmbedRequest, request: Request) -> Response:
    """The vector of one text or of many."""
    service, stopwatch = await translation.load_model(request, body.model, body.keep_alive, embedding_spec)
    spec = embedding_spec(service.engine.info.manifest)
    check_dimensions(body.dimensions, spec)
    raw, tokens = await _pooled(request, service, body)

    def made() -> OllamaEmbedAnswer:
        vectors = [finished(vector, spec, body.dimensions).tolist() for vector in raw]
        took = stopwatch.durations(time.perf_counter_ns(), None)
        return OllamaEmbedAnswer(body.model, vectors, took["total_duration"], took["load_duration"], tokens)

    return await launch.written_aside(made)


@router.post("/api/embeddings", responses=answers(OllamaEmbeddingsAnswer, model=OllamaError))
async def create_ollama_embedding(body: given.OllamaEmbeddingsRequest, request: Request) -> Response:
    """The vector of one text, as older clients ask for it."""
    service, _ = await translation.load_model(request, body.model, body.keep_alive, embedding_spec)
    spec = embedding_spec(service.engine.info.manifest)
    with field_aliases(translation.embed_name):
        vectors, _ = await _pooled(request, service, body)
    return await launch.written_aside(lambda: OllamaEmbeddingsAnswer(finished(vectors[0], spec).tolist()))


async def _pooled(
    request: Request, service: Service, body: given.OllamaEmbedRequest | given.OllamaEmbeddingsRequest
) -> tuple[list[bytes], int]:
    inputs = embedding_inputs(translation.as_embedding(body), service.engine.info)
    return await until_left(request, service.pooled(service.envelope("ollama-"), inputs, Pooling(), 0))
