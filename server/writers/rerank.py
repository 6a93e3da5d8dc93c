"""The answer of POST /v1/rerank."""

from collections.abc import Sequence
from typing import Any

from engine.bundle.pooling import RerankSpec
from engine.pooling.vectors import score
from server.protocol.rerank import RerankRequest
from server.writers.embeddings import pooled_usage
from server.writers.usage import Envelope


def ranking(
    raw: Sequence[bytes], spec: RerankSpec, body: RerankRequest, envelope: Envelope, tokens: int
) -> dict[str, Any]:
    """The ranking, best first; equal scores in the order of the documents. raw: of each document."""
    texts, scores = body.texts, [score(numbers, spec) for numbers in raw]
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    results: list[dict[str, Any]] = []
    for index in order:
        entry: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if body.return_documents is not False:
            entry["document"] = {"text": texts[index]}
        results.append(entry)
    return {"id": envelope.id, "model": envelope.model, "results": results, "usage": pooled_usage(tokens)}
