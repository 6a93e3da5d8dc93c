"""POST /v1/embeddings."""

import base64
from typing import Literal

from fastapi import APIRouter, Request, Response

from engine.client.pooling import finished
from engine.request import Pooling
from server.api.body import BoundedRoute
from server.api.openapi import answers
from server.generation.launch import take_model, until_left, written_aside
from server.generation.params import EmbeddingRequest, PooledUsage, check_dimensions, embedding_inputs, embedding_spec
from server.http.fields import Answer


class Embedding(Answer, kw_only=True):
    """One vector, as numbers or as base64 of float32 little-endian; index of its input."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(Answer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PooledUsage


router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/embeddings", responses=answers(EmbeddingList))
async def create_embeddings(body: EmbeddingRequest, request: Request) -> Response:
    """The vector of one text or of many, given as text or as token ids."""
    service = await take_model(request, body.model, embedding_spec)
    spec = embedding_spec(service.engine.info.manifest)
    check_dimensions(body.dimensions, spec)
    inputs = embedding_inputs(body, service.engine.info)
    envelope = service.envelope("embd-")
    vectors, tokens = await until_left(request, service.pooled(envelope, inputs, Pooling(), body.priority or 0))

    def made() -> EmbeddingList:
        data = []
        for index, raw in enumerate(vectors):
            vector = finished(raw, spec, body.dimensions)
            is_text = body.encoding_format == "base64"
            written = base64.b64encode(vector.tobytes()).decode() if is_text else vector.tolist()
            data.append(Embedding(index=index, embedding=written))
        return EmbeddingList(data=data, model=service.model, usage=PooledUsage(tokens, tokens))

    return await written_aside(made)
