"""POST /v1/rerank, also as /rerank and /v2/rerank: the form of Jina, Cohere and vLLM."""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType
from pydantic import Field, StringConstraints

from engine.bundle.specs import RerankKind
from engine.client.pooling import Pair, score
from engine.request import Pooling
from server.api.body import BoundedRoute
from server.api.openapi import answers
from server.generation.launch import take_model, until_left, written_aside
from server.generation.params import PooledUsage, Truncation, kept_tokens, rerank_spec
from server.http.errors import refuse
from server.http.fields import MAX_TOKENS, Answer, Body, Name, Priority, TextOrObject, User


class DocumentText(Body):
    text: str


Document = TextOrObject[str, DocumentText]
Positive = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


class RerankRequest(Body):
    """POST /v1/rerank. `instruction`: what makes a document fit, for models that are told in words."""

    model: Name
    query: Annotated[str, StringConstraints(min_length=1)]
    documents: Annotated[list[Document], Field(min_length=1, max_length=2048, fail_fast=True)]
    top_n: Positive | None = None
    return_documents: bool | None = None
    instruction: Annotated[str, StringConstraints(max_length=4096)] | None = None
    max_tokens_per_doc: Positive | None = None
    truncate_prompt_tokens: Truncation | None = None
    priority: Priority | None = None
    user: User | None = None


class RankedDocument(Answer):
    text: str


class Ranked(Answer):
    """The score of one document, 0 to 1; index in the request. No document when `return_documents` is false."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(Answer):
    """Answer of POST /v1/rerank, best first."""

    id: str
    model: str
    results: list[Ranked]
    usage: PooledUsage


router = APIRouter(route_class=BoundedRoute)


@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/v1/rerank", responses=answers(Ranking))
async def rerank(body: RerankRequest, request: Request) -> Response:
    """The documents in order of how well they fit the query."""
    service = await take_model(request, body.model, rerank_spec)
    info, instruction = service.engine.info, body.instruction or ""
    spec = rerank_spec(info.manifest)
    keep = kept_tokens(body.truncate_prompt_tokens, info.max_input, info.max_input)
    is_pair = spec.kind is RerankKind.PAIR
    if is_pair and instruction:
        raise refuse("This model takes no 'instruction': it reads query and document alone.", "instruction")
    texts = [document if isinstance(document, str) else document.text for document in body.documents]
    inputs = [
        Pair(body.query, text, f"documents[{index}]", keep, body.max_tokens_per_doc, instruction)
        for index, text in enumerate(texts)
    ]
    envelope, pooling = service.envelope("rerank-"), Pooling(token_ids=() if is_pair else (spec.yes_id, spec.no_id))
    vectors, tokens = await until_left(request, service.pooled(envelope, inputs, pooling, body.priority or 0))

    def made() -> Ranking:
        """Equal scores are in the order of the documents."""
        scores = [score(numbers, spec) for numbers in vectors]
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
        is_shown = body.return_documents is not False
        found = [Ranked(index, scores[index], RankedDocument(texts[index]) if is_shown else UNSET) for index in order]
        return Ranking(envelope.id, envelope.model, found, PooledUsage(tokens, tokens))

    return await written_aside(made)
