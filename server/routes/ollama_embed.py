"""POST /api/embed and POST /api/embeddings: Ollama's format over the path of /v1/embeddings."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response

from engine.request import Pooling
from server.chats.arrival import Arrival, arrived
from server.chats.own_names import own_names
from server.http.body import UntypedRoute
from server.protocol.embeddings import EmbeddingRequest
from server.protocol.ollama.embed import (
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
)
from server.protocol.ollama.errors import OllamaError
from server.protocol.openapi_responses import whole_answers
from server.requests.ollama.embed import as_embedding, embed_name
from server.requests.pooling import check_dimensions, embedding_inputs, embedding_spec
from server.service import Pooled, until_left
from server.writers.ollama.embed import embed_answer, embeddings_answer

router = APIRouter(route_class=UntypedRoute)


@router.post("/api/embed", response_model=None, responses=whole_answers(OllamaEmbedAnswer, OllamaError))
async def create_ollama_embed(body: OllamaEmbedRequest, request: Request) -> Response:
    """The vector of one text or of many."""
    arrival = await arrived(request, body.model, body.keep_alive, embedding_spec)
    spec = embedding_spec(arrival.service.engine.info.manifest)
    check_dimensions(body.dimensions, spec)
    pooled = await _pooled(request, arrival, as_embedding(body))
    return await _written(
        lambda: embed_answer(body.model, pooled.vectors, spec, body.dimensions, pooled.tokens, arrival.stopwatch)
    )


@router.post("/api/embeddings", response_model=None, responses=whole_answers(OllamaEmbeddingsAnswer, OllamaError))
async def create_ollama_embedding(body: OllamaEmbeddingsRequest, request: Request) -> Response:
    """The vector of one text, as older clients ask for it."""
    arrival = await arrived(request, body.model, body.keep_alive, embedding_spec)
    spec = embedding_spec(arrival.service.engine.info.manifest)
    with own_names(embed_name):
        pooled = await _pooled(request, arrival, as_embedding(body))
    return await _written(lambda: embeddings_answer(pooled.vectors[0], spec))


async def _pooled(request: Request, arrival: Arrival, body: EmbeddingRequest) -> Pooled:
    service = arrival.service
    inputs = embedding_inputs(body, service.engine.info, service.settings)
    return await until_left(request, service.pooled(service.envelope("ollama"), inputs, Pooling(), 0))


async def _written(made: Callable[[], dict[str, Any]]) -> Response:
    """Off the loop: thousands of vectors are many numbers."""
    body = await asyncio.get_running_loop().run_in_executor(None, lambda: msgspec.json.encode(made()))
    return Response(body, media_type="application/json")
