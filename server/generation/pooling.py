"""What becomes vectors and scores: the body of an embedding request, its inputs, and rules between fields and model."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from engine.bundle.manifest import Manifest
from engine.bundle.specs import PoolingSpec, RerankSpec
from engine.client.engine import EngineInfo
from engine.client.pooling import IdsInput, PooledInput, TextInput
from server.generation.params import kept_tokens
from server.http.errors import refuse
from server.http.fields import MAX_TOKENS, Answer, Body, Name, Priority, TokenIds, User, texts_or_ids

MAX_INPUTS = 2048  # OpenAI's limit
Inputs = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), Tag("id_lists")],
    Discriminator(texts_or_ids),
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
    """Tokens of all inputs; none are generated."""

    prompt_tokens: int
    total_tokens: int


def embedding_spec(manifest: Manifest) -> PoolingSpec:
    """How this model's vectors are made; refused by name when it makes none."""
    if manifest.pooling is None:
        raise refuse(_wrong_task(manifest, "make embeddings", "embed"), "model", "model_not_supported")
    return manifest.pooling


def rerank_spec(manifest: Manifest) -> RerankSpec:
    """How this model scores documents; refused by name when it does not."""
    if manifest.rerank is None:
        raise refuse(_wrong_task(manifest, "rerank", "rerank"), "model", "model_not_supported")
    return manifest.rerank


def embedding_inputs(body: EmbeddingRequest, info: EngineInfo) -> list[PooledInput]:
    keep, given = kept_tokens(body.truncate_prompt_tokens, info.max_input, info.max_input), body.input
    if isinstance(given, str):
        return [TextInput(given, "input", body.prompt_name, keep)]
    if isinstance(given[0], int):
        return [IdsInput(tuple(item for item in given if isinstance(item, int)), "input", keep)]
    return [
        TextInput(item, f"input[{index}]", body.prompt_name, keep)
        if isinstance(item, str)
        else IdsInput(tuple(item if isinstance(item, list) else ()), f"input[{index}]", keep)
        for index, item in enumerate(given)
    ]


def check_dimensions(asked: int | None, spec: PoolingSpec) -> None:
    """Raise Refusal for more numbers than a vector has, or fewer of a model that was not trained for that."""
    if asked is None or asked == spec.dimensions:
        return
    if asked > spec.dimensions:
        message = f"Invalid 'dimensions': {asked} is above the {spec.dimensions} of this model's vectors."
        raise refuse(message, "dimensions", "integer_above_max_value")
    if not spec.may_cut:
        message = f"This model's vectors have {spec.dimensions} dimensions and cannot be shortened."
        raise refuse(message, "dimensions", "invalid_value")


def _wrong_task(manifest: Manifest, what: str, task: str) -> str:
    return (
        f"The model does not {what}: its bundle is for the task '{manifest.task}'. "
        f"Serve one that was compiled with --task {task}."
    )
