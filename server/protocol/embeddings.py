"""Body and answer of POST /v1/embeddings: OpenAI's, with vLLM's `truncate_prompt_tokens` and `priority`."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.fields import MAX_TOKENS, Answer, Body, Name, Priority, TokenId, User

MAX_INPUTS = 2048  # OpenAI's limit

TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]


def _shape(value: object) -> str:
    """Tag of the input, told from its first element (the rest is then checked against that type)."""
    if not isinstance(value, list):
        return "text"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "id_lists"
    return "ids" if isinstance(first, int) else "texts"


Inputs = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("id_lists")],
    Discriminator(_shape),
]
Truncation = Annotated[int, Field(ge=-1, le=MAX_TOKENS)]


class EmbeddingRequest(Body):
    """POST /v1/embeddings. `prompt_name`: of the prompts that the model's files have for queries and documents."""

    model: Name
    input: Inputs
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    user: User | None = None
    truncate_prompt_tokens: Truncation | None = None
    priority: Priority | None = None
    prompt_name: Annotated[str, StringConstraints(max_length=256)] | None = None


class PooledUsage(Answer):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class Embedding(Answer):
    """One vector, as numbers or as base64 of float32 little-endian; index of its input."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingList(Answer):
    """Answer of POST /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: PooledUsage
