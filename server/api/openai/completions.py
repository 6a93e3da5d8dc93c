"""POST /v1/completions: its body, its prompts and its route."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from engine.client.engine import Engine
from engine.errors import CallerError
from server.api.body import BoundedRoute
from server.api.openai.completion_writer import Best, Completion, CompletionWriter, Echo, TextChoice
from server.api.openapi import answers
from server.generation.answers import StreamUsage, TokenCount
from server.generation.chat_request import MAX_CHOICES, GenerationBody
from server.generation.launch import ReadPrompt, answer, take_model, until_left
from server.generation.params import GenerationParams, check_choices, check_generates, generation_params
from server.generation.structured_output import text_form
from server.http.errors import refuse
from server.http.fields import NotYet, TextOrList, TokenIds, TokenLimit, TopLogprobs, texts_or_ids
from server.settings import Settings

MAX_PROMPTS = 1024


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("id_lists")],
    Discriminator(texts_or_ids),
]
EncodedEmbeds = Annotated[str, StringConstraints(min_length=1)]
EncodedList = Annotated[list[EncodedEmbeds], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)]


class CompletionRequest(GenerationBody):
    prompt: Prompt
    prompt_embeds: TextOrList[EncodedEmbeds, EncodedList] | None = None
    logprobs: TopLogprobs | None = None
    max_tokens: TokenLimit | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    suffix: NotYet = None
    add_special_tokens: Literal[True] | None = None

    @model_validator(mode="before")
    @classmethod
    def _prompt_may_be_left_out(cls, value: Any) -> Any:
        """Beside `prompt_embeds`, which take its place."""
        if isinstance(value, dict) and value.get("prompt_embeds") is not None and value.get("prompt") is None:
            return {**value, "prompt": ""}
        return value


DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


def completion_params(body: CompletionRequest, engine: Engine, settings: Settings) -> GenerationParams:
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
    params = generation_params(body, engine, settings, wanted, body.logprobs)
    if params.denoising is not None and body.echo and body.logprobs is not None:
        raise refuse(
            "'echo' with 'logprobs' is not supported: a block-diffusion model gives a prompt's tokens no probability.",
            "echo",
            "unsupported_parameter",
        )
    if body.best_of is not None and body.best_of > shown:
        check_choices(body.best_of, "best_of", settings)
        # Ranked by log-probability, so the engine reports it whether or not the caller asked.
        params = replace(params, choices=body.best_of, logprobs=body.logprobs or 0)
    return replace(params, prompt_logprobs=body.logprobs) if body.echo else params


def given_prompts(body: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a request, or their embeddings as they came, one or many. Raises Refusal for both at once."""
    if body.prompt_embeds is None:
        prompt = body.prompt
        if isinstance(prompt, str):
            return [prompt]
        ids = [item for item in prompt if isinstance(item, int)]
        return [ids] if ids else [item for item in prompt if not isinstance(item, int)]
    if body.prompt != "":
        raise refuse("Give 'prompt' or 'prompt_embeds', not both.", "prompt_embeds", "invalid_value")
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(body, name):
            raise refuse(f"'{name}' needs the tokens of a prompt, 'prompt_embeds' has none.", name, "invalid_value")
    return [body.prompt_embeds] if isinstance(body.prompt_embeds, str) else list(body.prompt_embeds)


def check_count(prompts: int, choices: int, settings: Settings) -> None:
    """Raise Refusal when these prompts with so many choices each are more than one request may ask for."""
    if prompts * choices > settings.max_queued:
        message = (
            f"{prompts} prompts times {choices} choices is more than the {settings.max_queued} requests taken at once."
        )
        raise refuse(message, "prompt", "array_above_max_length")


async def prompt_ids(
    given: Sequence[str | list[int]], field: str, engine: Engine, keep: int | None
) -> list[ReadPrompt]:
    """Each prompt as token ids, of a longer one the last `keep`. Raises CallerError naming the prompt at fault."""
    prompts: list[ReadPrompt] = []
    for number, prompt in enumerate(given):
        try:
            if not isinstance(prompt, str):
                prompts.append(engine.check_ids(prompt[-keep:] if keep else prompt, field))
            elif field == "prompt":
                prompts.append(await engine.text_prompt(prompt, keep))
            else:
                prompts.append(await engine.embeds_prompt(prompt, field))
        except CallerError as error:
            if len(given) > 1 and error.param is not None and error.param.startswith(field):
                error.param = f"{field}[{number}]{error.param.removeprefix(field)}"
            raise
    return prompts


router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/completions", responses=answers(Completion, Completion))
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue one prompt or several, given as text or as token ids; whole or as a stream of events."""
    service = await take_model(request, body.model, check_generates)
    engine = service.engine
    params = completion_params(body, engine, service.settings)
    given = given_prompts(body)
    check_count(len(given), params.choices, service.settings)
    service.admit(len(given) * params.choices)
    field = "prompt" if body.prompt_embeds is None else "prompt_embeds"
    prompts = await until_left(request, prompt_ids(given, field, engine, params.keep))
    params = await until_left(request, service.constrained(params, text_form(body)))
    envelope = service.envelope("cmpl-")
    stream = service.launch(envelope, prompts, params, field)
    count = TokenCount(stream.prompt_tokens, params.choices)
    echoes = [
        Echo.of(prompt, engine.token_pieces(ids)) if body.echo and isinstance(ids, tuple) else None
        for prompt, ids in zip(given, prompts, strict=True)
    ]
    choices = [TextChoice(body.logprobs, echo) for echo in echoes for _ in range(params.choices)]
    best = Best(params.choices, body.n or 1)
    writer = CompletionWriter(envelope, count, choices, StreamUsage(count, body.stream_options), best)
    return await answer(request, stream, writer, bool(body.stream))
