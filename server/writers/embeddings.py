"""The answer of POST /v1/embeddings."""

import base64
from collections.abc import Sequence
from typing import Any

from engine.bundle.pooling import PoolingSpec
from engine.pooling.vectors import finished
from server.protocol.embeddings import EmbeddingRequest


def embedding_list(
    vectors: Sequence[bytes], spec: PoolingSpec, body: EmbeddingRequest, model: str, tokens: int
) -> dict[str, Any]:
    """The list object. vectors: of each input, as the engine gave them."""
    is_text = body.encoding_format == "base64"
    data = []
    for index, raw in enumerate(vectors):
        vector = finished(raw, spec, body.dimensions)
        written = base64.b64encode(vector.tobytes()).decode() if is_text else vector.tolist()
        data.append({"object": "embedding", "index": index, "embedding": written})
    return {"object": "list", "data": data, "model": model, "usage": pooled_usage(tokens)}


def pooled_usage(tokens: int) -> dict[str, int]:
    """Tokens of all inputs; none are generated."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}
