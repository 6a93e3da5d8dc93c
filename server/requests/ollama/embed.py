"""/api/embed and /api/embeddings -> the body of /v1/embeddings, whose functions do the rest."""

from server.protocol.embeddings import EmbeddingRequest
from server.protocol.ollama.embed import OllamaEmbeddingsRequest, OllamaEmbedRequest

WHOLE = -1  # of `truncate_prompt_tokens`: as many as the model takes


def as_embedding(body: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> EmbeddingRequest:
    """The fields both formats have, under the names of /v1/embeddings; they were validated already."""
    if isinstance(body, OllamaEmbeddingsRequest):
        return EmbeddingRequest.model_construct(model=body.model, input=body.prompt, truncate_prompt_tokens=WHOLE)
    return EmbeddingRequest.model_construct(
        model=body.model,
        input=body.input,
        dimensions=body.dimensions,
        truncate_prompt_tokens=None if body.truncate is False else WHOLE,
    )


def embed_name(param: str) -> str:
    """What a field of /v1/embeddings is called in /api/embeddings."""
    return "prompt" if param == "input" else param
