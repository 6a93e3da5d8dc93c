"""POST /api/embed and POST /api/embeddings: Ollama's format over the path of /v1/embeddings."""

import time

from fastapi import APIRouter, Request, Response

from engine.client.pooling import finished
from engine.request import Pooling
from server.api.body import UntypedRoute
from server.api.ollama.requests import OllamaEmbeddingsRequest, OllamaEmbedRequest
from server.api.ollama.translation import LoadedModel, as_embedding, embed_name, load_model
from server.api.openapi import answers
from server.generation.launch import Pooled, until_left, written_aside
from server.generation.pooling import EmbeddingRequest, check_dimensions, embedding_inputs, embedding_spec
from server.generation.prepare import field_aliases
from server.http.error_formats import OllamaError
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
    return await until_left(request, service.pooled(service.envelope("ollama"), inputs, Pooling(), 0))
