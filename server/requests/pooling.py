"""What becomes vectors and scores: the inputs of a request, and its rules between fields and model."""

from engine.bundle.manifest import Manifest
from engine.bundle.pooling import PoolingSpec, RerankKind, RerankSpec
from engine.client.engine import EngineInfo
from engine.pooling.prompts import IdsInput, JudgedPair, PooledInput, TextInput, TextPair
from engine.request import Pooling
from server.http.errors import refuse
from server.protocol.embeddings import EmbeddingRequest
from server.protocol.rerank import RerankRequest
from server.settings import Settings


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


def embedding_inputs(body: EmbeddingRequest, info: EngineInfo, settings: Settings) -> list[PooledInput]:
    """The inputs, one or many."""
    keep, given = _keep(body.truncate_prompt_tokens, info), body.input
    if isinstance(given, str):
        return [TextInput(given, "input", body.prompt_name, keep)]
    if isinstance(given[0], int):
        return [IdsInput(tuple(item for item in given if isinstance(item, int)), "input", keep)]
    check_count(len(given), "input", settings)
    return [
        TextInput(item, f"input[{index}]", body.prompt_name, keep)
        if isinstance(item, str)
        else IdsInput(tuple(item if isinstance(item, list) else ()), f"input[{index}]", keep)
        for index, item in enumerate(given)
    ]


def rerank_inputs(body: RerankRequest, info: EngineInfo, settings: Settings) -> list[PooledInput]:
    """The query with each of the documents."""
    check_count(len(body.documents), "documents", settings)
    keep = _keep(body.truncate_prompt_tokens, info)
    if rerank_spec(info.manifest).kind is RerankKind.PAIR:
        if body.instruction:
            raise refuse("This model takes no 'instruction': it reads query and document alone.", "instruction")
        return [
            TextPair(body.query, text, f"documents[{index}]", keep, body.max_tokens_per_doc)
            for index, text in enumerate(body.texts)
        ]
    return [
        JudgedPair(body.query, text, f"documents[{index}]", body.instruction or "", keep, body.max_tokens_per_doc)
        for index, text in enumerate(body.texts)
    ]


def judgement(spec: RerankSpec) -> Pooling:
    """The numbers that a score is made of."""
    if spec.kind is RerankKind.PAIR:
        return Pooling()
    return Pooling(token_ids=(spec.yes_id, spec.no_id))


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


def check_count(inputs: int, param: str, settings: Settings) -> None:
    """Raise Refusal for more inputs than one request may have."""
    if inputs > settings.max_inputs:
        message = f"Invalid '{param}': too many elements ({inputs}). At most {settings.max_inputs} are allowed."
        raise refuse(message, param, "array_above_max_length")


def _keep(asked: int | None, info: EngineInfo) -> int | None:
    """Tokens of an input to use; -1 is as many as the model takes."""
    if asked is None:
        return None
    if asked == 0 or asked > info.max_input:
        message = f"Invalid 'truncate_prompt_tokens': {asked} is not -1 and not from 1 to {info.max_input}."
        raise refuse(message, "truncate_prompt_tokens", "invalid_value")
    return asked if asked > 0 else info.max_input


def _wrong_task(manifest: Manifest, what: str, task: str) -> str:
    return (
        f"The model does not {what}: its bundle is for the task '{manifest.task}'. "
        f"Serve one that was compiled with --task {task}."
    )
