"""Request body -> parameters of the generation or of vectors: rules between fields, limits, tokens of the model."""

import re
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Discriminator, Field, StringConstraints, Tag

from engine.bundle.answer_format import Markers
from engine.bundle.manifest import Manifest
from engine.bundle.specs import ModelTask, PoolingSpec, RerankSpec, UsualSampling
from engine.client.engine import Engine, EngineInfo
from engine.client.pooling import IdsInput, PooledInput, TextInput
from engine.request import Denoising, SamplingParams, Unmasking
from server.generation.chat_request import ChatRequest, GenerationBody, PredictedContent
from server.generation.chat_template import joined_text
from server.http.errors import Refusal, echo, refuse
from server.http.fields import MAX_TOKENS, Answer, Body, Name, Priority, TokenIds, User, texts_or_ids
from server.settings import Settings

_TOKEN_KEY = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How every choice of a request is generated, checked. `max_tokens` None = up to the end of the window.
    each: of a choice, but for its bound on tokens and its own seed. keep: of a longer prompt only this many last tokens
    are used. once: what these enclose ends the text when it comes again in the same words."""

    choices: int
    max_tokens: int | None
    each: SamplingParams
    stop: tuple[str, ...]
    include_stop: bool
    skip_special: bool
    priority: int
    keep: int | None
    prediction: tuple[int, ...] = ()
    once: Markers | None = None

    def sampling(self, choice: int, max_tokens: int) -> SamplingParams:
        """The engine's parameters of one choice. Choices of a seeded request use seed, seed + 1, ..."""
        seed = None if self.each.seed is None else (self.each.seed + choice + 2**63) % 2**64 - 2**63
        return replace(self.each, max_tokens=max_tokens, seed=seed)

    def sampled(self, **changes: Any) -> "GenerationParams":
        return replace(self, each=replace(self.each, **changes))


def chat_params(body: ChatRequest, engine: Engine, settings: Settings) -> GenerationParams:
    """Check a chat body and say how to generate; raises Refusal naming the field."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise refuse("Give 'max_completion_tokens' or 'max_tokens', not both.", "max_tokens", "invalid_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise refuse("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs", "invalid_value")
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    found = generation_params(body, engine, settings, wanted, (body.top_logprobs or 0) if body.logprobs else None)
    # Small models repeat a call until the tokens run out. Who asks for parallel calls may want the same one twice.
    is_one_wanted = body.tools and body.tool_choice != "none" and not body.parallel_tool_calls
    return replace(found, once=engine.info.manifest.text.writes.call_tags if is_one_wanted else None)


OTHER_TASKS = {
    ModelTask.EMBED: "it makes embeddings and answers POST /v1/embeddings",
    ModelTask.RERANK: "it scores documents and answers POST /v1/rerank",
    ModelTask.TRANSCRIBE: "it writes speech down and answers POST /v1/audio/transcriptions",
}


def check_generates(manifest: Manifest) -> None:
    if not manifest.generates:
        raise refuse(f"This model generates no text; {OTHER_TASKS[manifest.task]}.", "model", "model_not_supported")


def generation_params(
    body: GenerationBody, engine: Engine, settings: Settings, max_tokens: int | None, logprobs: int | None
) -> GenerationParams:
    choices = 1 if body.n is None else body.n
    check_choices(choices, "n", settings)
    if body.stream_options is not None and not body.stream:
        raise refuse("'stream_options' is only allowed when 'stream' is true.", "stream_options", "invalid_value")
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        message = f"'min_tokens' ({min_tokens}) is above the maximum of {max_tokens} tokens."
        raise refuse(message, "min_tokens", "invalid_value")
    window = engine.info.max_context
    room = max(1, window - max(1, max_tokens or 1))
    asked, (stop, stop_ids) = usual_sampling(body, engine), _stops(body, engine)
    biases = _biases(body.logit_bias, engine)
    keep = kept_tokens(body.truncate_prompt_tokens, window - 1, room)
    each = SamplingParams(
        max_tokens or 0,
        stop_token_ids=stop_ids,
        ignored_end_ids=engine.info.manifest.text.stop_ids if body.ignore_eos else (),
        temperature=1.0 if asked.temperature is None else float(asked.temperature),
        # top_p 0 keeps the likeliest token only, which is top_k 1; -1 is vLLM's spelling of "off".
        top_k=1 if asked.top_p == 0 else max(0, asked.top_k or 0),
        top_p=1.0 if not asked.top_p else float(asked.top_p),
        min_p=float(asked.min_p or 0),
        repetition_penalty=1.0 if asked.repetition_penalty is None else float(asked.repetition_penalty),
        frequency_penalty=float(body.frequency_penalty or 0),
        presence_penalty=float(body.presence_penalty or 0),
        logit_bias=biases,
        seed=body.seed,
        min_tokens=min_tokens,
        logprobs=logprobs,
        denoising=denoising(body, engine),
    )
    shows_stop, skips_special = bool(body.include_stop_str_in_output), body.skip_special_tokens is not False
    return GenerationParams(choices, max_tokens, each, stop, shows_stop, skips_special, body.priority or 0, keep)


def usual_sampling(body: GenerationBody, engine: Engine) -> UsualSampling:
    """What a request asks for, and what it leaves open as the model's files advise."""
    manifest = engine.info.manifest
    usual = manifest.text.sampling
    if manifest.diffusion is not None:  # it takes no penalties
        usual = msgspec.structs.replace(usual, repetition_penalty=None)
    given = {name: getattr(body, name) for name in UsualSampling.__struct_fields__}
    return msgspec.structs.replace(usual, **{name: value for name, value in given.items() if value is not None})


def check_choices(choices: int, param: str, settings: Settings) -> None:
    if choices > settings.max_queued:
        message = f"Invalid '{param}': {choices} is above the maximum of {settings.max_queued}."
        raise refuse(message, param, "integer_above_max_value")


def kept_tokens(asked: int | None, most: int, all_that_fit: int) -> int | None:
    """Tokens of a prompt or an input to use, None for no bound; -1 is as many as fit."""
    if asked == 0 or (asked or 0) > most:
        message = f"Invalid 'truncate_prompt_tokens': {asked} is not -1 and not from 1 to {most}."
        raise refuse(message, "truncate_prompt_tokens", "invalid_value")
    return all_that_fit if asked == -1 else asked


def _stops(body: GenerationBody, engine: Engine) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and tokens that end an answer: the model's own, and those of the request."""
    text, ids = engine.info.manifest.text, body.stop_token_ids or []
    _check_vocabulary(ids, engine.info.vocab, "stop_token_ids")
    asked = [body.stop] if isinstance(body.stop, str) else body.stop or []
    own_texts, own_ids = ((), ()) if body.ignore_eos else (text.stop_texts, text.stop_ids)
    return tuple(dict.fromkeys((*own_texts, *asked))), tuple(dict.fromkeys((*own_ids, *ids)))


def _biases(given: dict[str, float] | None, engine: Engine) -> tuple[tuple[int, float], ...]:
    if not given:
        return ()
    for key in given:
        if not _TOKEN_KEY.fullmatch(key):
            raise refuse(f"Invalid key in 'logit_bias': {echo(key)} is not a token id.", "logit_bias", "invalid_value")
    biases = {int(key): float(bias) for key, bias in given.items()}
    _check_vocabulary(list(biases), engine.info.vocab, "logit_bias")
    return tuple(biases.items())


def _check_vocabulary(ids: list[int], vocabulary: int, param: str) -> None:
    for token_id in ids:
        if token_id >= vocabulary:
            message = f"'{param}' has {token_id}, not a token id of this model (0 to {vocabulary - 1})."
            raise refuse(message, param, "invalid_value")


FIELDS = ("denoising_steps", "unmasking_strategy", "confidence_threshold", "entropy_bound")
# Tokens of a block are chosen at once, in no order: what a penalty would count is not known then.
PENALTIES = {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0}


def denoising(body: GenerationBody, engine: Engine) -> Denoising | None:
    """How the blocks of an answer are denoised, None for a model that takes one token after the other.
    Raises Refusal naming a field that the model served cannot honour."""
    diffusion = engine.info.manifest.diffusion
    if diffusion is None:
        for field in FIELDS:
            if getattr(body, field) is not None:
                message = f"'{field}' is not supported: this model generates one token after the other, not blocks."
                raise refuse(message, field, "unsupported_parameter")
        return None
    _refuse_ordered(body)
    asked, most, strategy = body.denoising_steps, diffusion.block_length, body.unmasking_strategy
    if asked is not None and asked > most:
        message = f"Invalid 'denoising_steps': {asked} is above the {most} tokens of a block."
        raise refuse(message, "denoising_steps", "integer_above_max_value")
    bounds = {"confidence_threshold": body.confidence_threshold, "entropy_bound": body.entropy_bound}
    given: dict[str, Any] = {name: float(bound) for name, bound in bounds.items() if bound is not None}
    if strategy is not None:
        given["unmasking"] = Unmasking(strategy)
    return Denoising(most, diffusion.mask_token, asked or most, **given)


def out_of_order(param: str) -> Refusal:
    """The refusal of a field whose effect on a token depends on every token before."""
    message = f"'{param}' is not supported: a block-diffusion model chooses the tokens of a block in no order."
    return refuse(message, param, "unsupported_parameter")


def _refuse_ordered(body: GenerationBody) -> None:
    for field, neutral in PENALTIES.items():
        if getattr(body, field) not in (None, neutral):
            raise out_of_order(field)
    harmless = {
        "prediction": (None,),
        "thinking_token_budget": (None,),
        "tool_choice": (None, "none", "auto"),
        "parallel_tool_calls": (None, True),
    }
    for field, values in harmless.items():
        if isinstance(body, ChatRequest) and getattr(body, field) not in values:
            raise out_of_order(field)


async def predicted_tokens(prediction: PredictedContent | None, engine: Engine) -> tuple[int, ...]:
    if prediction is None:
        return ()
    tokens = await engine.tokenize(joined_text(prediction.content), add_special=False)
    known = takewhile(lambda token: token < engine.info.vocab, tokens)  # tokenizers may know more than their model
    return tuple(islice(known, engine.info.max_context))


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
        raise _wrong_task(manifest, "make embeddings", "embed")
    return manifest.pooling


def rerank_spec(manifest: Manifest) -> RerankSpec:
    """How this model scores documents; refused by name when it does not."""
    if manifest.rerank is None:
        raise _wrong_task(manifest, "rerank", "rerank")
    return manifest.rerank


def embedding_inputs(body: EmbeddingRequest, info: EngineInfo) -> list[PooledInput]:
    keep, given = kept_tokens(body.truncate_prompt_tokens, info.max_input, info.max_input), body.input
    many: list[Any] = [] if isinstance(given, str) or isinstance(given[0], int) else given
    named = [(f"input[{index}]", item) for index, item in enumerate(many)] or [("input", given)]
    return [
        TextInput(item, param, body.prompt_name, keep) if isinstance(item, str) else IdsInput(tuple(item), param, keep)
        for param, item in named
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


def _wrong_task(manifest: Manifest, what: str, task: str) -> Refusal:
    message = f"The model does not {what}: its bundle is for the task '{manifest.task}'."
    return refuse(f"{message} Serve one that was compiled with --task {task}.", "model", "model_not_supported")
