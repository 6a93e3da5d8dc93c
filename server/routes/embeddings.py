"""POST /v1/embeddings."""

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from engine.request import Pooling
from server.http.body import BoundedRoute
from server.protocol.embeddings import EmbeddingList, EmbeddingRequest
from server.protocol.openapi_responses import answers
from server.requests.pooling import check_dimensions, embedding_inputs, embedding_spec
from server.service import take_model, until_left
from server.writers.embeddings import embedding_list

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/embeddings", response_model=None, responses=answers(EmbeddingList))
async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """The vector of one text or of many, given as text or as token ids."""
    service = await take_model(request, body.model, embedding_spec)
    spec = embedding_spec(service.engine.info.manifest)
    check_dimensions(body.dimensions, spec)
    inputs = embedding_inputs(body, service.engine.info, service.settings)
    envelope = service.envelope("embd")
    pooled = await until_left(request, service.pooled(envelope, inputs, Pooling(), body.priority or 0))
    loop = asyncio.get_running_loop()
    written = await loop.run_in_executor(
        None, lambda: msgspec.json.encode(embedding_list(pooled.vectors, spec, body, service.model, pooled.tokens))
    )
    return Response(written, media_type="application/json")
