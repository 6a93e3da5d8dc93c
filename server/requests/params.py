"""Request body -> parameters of the generation: rules between fields, limits of the settings, tokens of the model."""

import re
from dataclasses import dataclass, replace

from engine.bundle.manifest import Manifest
from engine.bundle.task import ModelTask
from engine.request import Denoising, SamplingParams, ThinkingBudget
from server.engine_seam import EngineLike
from server.http.errors import echo, refuse
from server.protocol.chat_request import ChatRequest
from server.protocol.completion_request import CompletionRequest
from server.protocol.generation_request import GenerationBody
from server.requests.denoising import denoising
from server.settings import Settings

DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions
_TOKEN_KEY = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """How every choice of a request is generated, checked. `max_tokens` None = up to the end of the window."""

    choices: int
    max_tokens: int | None
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    include_stop: bool
    skip_special: bool
    priority: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: tuple[tuple[int, float], ...]
    seed: int | None
    min_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None = None
    thinking_budget: ThinkingBudget | None = None
    keep: int | None = None  # of a longer prompt only this many last tokens are used
    grammar: str | None = None
    prediction: tuple[int, ...] = ()
    denoising: Denoising | None = None

    def sampling(self, choice: int, max_tokens: int) -> SamplingParams:
        """The engine's parameters of one choice. Choices of a seeded request use seed, seed + 1, ..."""
        seed = None if self.seed is None else (self.seed + choice + 2**63) % 2**64 - 2**63
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=self.logit_bias,
            seed=seed,
            stop_token_ids=self.stop_token_ids,
            min_tokens=self.min_tokens,
            logprobs=self.logprobs,
            prompt_logprobs=self.prompt_logprobs,
            thinking_budget=self.thinking_budget,
            grammar=self.grammar,
            denoising=self.denoising,
        )


def chat_params(body: ChatRequest, engine: EngineLike, settings: Settings) -> GenerationParams:
    """Check a chat body and say how to generate; raises Refusal naming the field."""
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise refuse("Give 'max_completion_tokens' or 'max_tokens', not both.", "max_tokens", "invalid_value")
    if body.top_logprobs is not None and not body.logprobs:
        raise refuse("'top_logprobs' needs 'logprobs' to be true.", "top_logprobs", "invalid_value")
    wanted = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    return _params(body, engine, settings, wanted, (body.top_logprobs or 0) if body.logprobs else None)


def completion_params(body: CompletionRequest, engine: EngineLike, settings: Settings) -> GenerationParams:
    """Check a completion body and say how to generate; raises Refusal naming the field."""
    shown = 1 if body.n is None else body.n
    if body.max_tokens == 0 and not body.echo:
        message = "Invalid 'max_tokens': 0 is below the minimum of 1, unless 'echo' is true."
        raise refuse(message, "max_tokens", "integer_below_min_value")
    if body.best_of is not None and body.best_of < shown:
        raise refuse(f"'best_of' ({body.best_of}) is below 'n' ({shown}).", "best_of", "invalid_value")
    if body.best_of is not None and body.best_of > shown and body.stream:
        raise refuse("'best_of' above 'n' cannot be streamed.", "best_of", "invalid_value")
    wanted = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    params = _params(body, engine, settings, wanted, body.logprobs)
    if body.best_of is not None and body.best_of > shown:
        _check_choices(body.best_of, "best_of", settings)
        # Ranked by log-probability, so the engine reports it whether or not the caller asked.
        params = replace(params, choices=body.best_of, logprobs=body.logprobs or 0)
    return replace(params, prompt_logprobs=body.logprobs) if body.echo else params


def check_generates(manifest: Manifest) -> None:
    """Raise Refusal when the model gives no tokens."""
    if manifest.task is ModelTask.EMBED:
        message = "This model makes embeddings and generates no text; it answers POST /v1/embeddings."
        raise refuse(message, "model", "model_not_supported")
    if not manifest.generates:
        message = "This model scores documents and generates no text; it answers POST /v1/rerank."
        raise refuse(message, "model", "model_not_supported")


def _params(
    body: GenerationBody, engine: EngineLike, settings: Settings, max_tokens: int | None, logprobs: int | None
) -> GenerationParams:
    choices = 1 if body.n is None else body.n
    _check_choices(choices, "n", settings)
    if body.stream_options is not None and not body.stream:
        raise refuse("'stream_options' is only allowed when 'stream' is true.", "stream_options", "invalid_value")
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        message = f"'min_tokens' ({min_tokens}) is above the maximum of {max_tokens} tokens."
        raise refuse(message, "min_tokens", "invalid_value")
    return GenerationParams(
        choices=choices,
        max_tokens=max_tokens,
        stop=_stop(body, engine),
        stop_token_ids=_stop_ids(body, engine),
        include_stop=bool(body.include_stop_str_in_output),
        skip_special=body.skip_special_tokens is not False,
        priority=body.priority or 0,
        temperature=1.0 if body.temperature is None else float(body.temperature),
        # top_p 0 keeps the likeliest token only, which is top_k 1; -1 is vLLM's spelling of "off".
        top_k=1 if body.top_p == 0 else max(0, body.top_k or 0),
        top_p=1.0 if not body.top_p else float(body.top_p),
        min_p=float(body.min_p or 0),
        repetition_penalty=1.0 if body.repetition_penalty is None else float(body.repetition_penalty),
        frequency_penalty=float(body.frequency_penalty or 0),
        presence_penalty=float(body.presence_penalty or 0),
        logit_bias=_biases(body.logit_bias, engine),
        seed=body.seed,
        min_tokens=min_tokens,
        logprobs=logprobs,
        keep=_keep(body, engine.info.max_context, max_tokens),
        denoising=denoising(body, engine, settings),
    )


def _check_choices(choices: int, param: str, settings: Settings) -> None:
    limit = min(settings.max_choices, settings.max_queued)
    if choices > limit:
        message = f"Invalid '{param}': {choices} is above the maximum of {limit}."
        raise refuse(message, param, "integer_above_max_value")


def _keep(body: GenerationBody, window: int, max_tokens: int | None) -> int | None:
    """Prompt tokens to use; -1 is as many as leave room for the answer."""
    asked = body.truncate_prompt_tokens
    if asked is None:
        return None
    if asked == 0 or asked >= window:
        message = f"Invalid 'truncate_prompt_tokens': {asked} is not -1 and not from 1 to {window - 1}."
        raise refuse(message, "truncate_prompt_tokens", "invalid_value")
    return asked if asked > 0 else max(1, window - max(1, max_tokens or 1))


def _stop(body: GenerationBody, engine: EngineLike) -> tuple[str, ...]:
    asked = [body.stop] if isinstance(body.stop, str) else body.stop or []
    own = () if body.ignore_eos else engine.info.manifest.text.stop_texts
    return tuple(dict.fromkeys((*own, *asked)))


def _stop_ids(body: GenerationBody, engine: EngineLike) -> tuple[int, ...]:
    asked = body.stop_token_ids or []
    _check_vocabulary(asked, engine.info.vocab, "stop_token_ids")
    own = () if body.ignore_eos else engine.info.manifest.text.stop_ids
    return tuple(dict.fromkeys((*own, *asked)))


def _biases(given: dict[str, float] | None, engine: EngineLike) -> tuple[tuple[int, float], ...]:
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
