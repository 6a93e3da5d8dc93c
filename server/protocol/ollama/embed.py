"""Bodies and answers of POST /api/embed, and of POST /api/embeddings, which is older and takes one text."""

from typing import Annotated

from pydantic import Discriminator, Field, Tag

from server.protocol.embeddings import MAX_INPUTS
from server.protocol.fields import MAX_TOKENS, Answer, Body, Name, text_or_list
from server.protocol.ollama.options import OllamaOptions
from server.protocol.ollama.requests import KeepAlive

Texts = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("texts")],
    Discriminator(text_or_list),
]


class OllamaEmbedRequest(Body):
    """POST /api/embed. A text that is too long is cut unless `truncate` is false, as in Ollama."""

    model: Name
    input: Texts
    truncate: bool | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsRequest(Body):
    """POST /api/embeddings."""

    model: Name
    prompt: str
    options: OllamaOptions | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbedAnswer(Answer):
    """Answer of POST /api/embed: a vector of length 1 for each text, and durations in nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddingsAnswer(Answer):
    """Answer of POST /api/embeddings."""

    embedding: list[float]
