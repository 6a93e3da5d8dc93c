"""POST /v1/rerank, also as /rerank and /v2/rerank."""

import asyncio

import msgspec
from fastapi import APIRouter, Request, Response

from server.http.body import BoundedRoute
from server.protocol.openapi_responses import answers
from server.protocol.rerank import Ranking, RerankRequest
from server.requests.pooling import judgement, rerank_inputs, rerank_spec
from server.service import take_model, until_left
from server.writers.rerank import ranking

router = APIRouter(route_class=BoundedRoute)


@router.post("/rerank", response_model=None, include_in_schema=False)
@router.post("/v2/rerank", response_model=None, include_in_schema=False)
@router.post("/v1/rerank", response_model=None, responses=answers(Ranking))
async def rerank(body: RerankRequest, request: Request) -> Response:
    """The documents in order of how well they fit the query."""
    service = await take_model(request, body.model, rerank_spec)
    spec = rerank_spec(service.engine.info.manifest)
    inputs = rerank_inputs(body, service.engine.info, service.settings)
    envelope = service.envelope("rerank")
    pooled = await until_left(request, service.pooled(envelope, inputs, judgement(spec), body.priority or 0))
    loop = asyncio.get_running_loop()
    written = await loop.run_in_executor(
        None, lambda: msgspec.json.encode(ranking(pooled.vectors, spec, body, envelope, pooled.tokens))
    )
    return Response(written, media_type="application/json")
