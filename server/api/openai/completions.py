"""POST /v1/completions: its body, its prompts, the text_completion object and the chunks of its stream."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from engine.client.engine import Engine
from engine.errors import CallerError
from engine.request import Delta, TextLogprob
from server.api.body import BoundedRoute
from server.api.openapi import answers
from server.generation.answers import FINISH_NAMES, Envelope, Identified, StreamUsage, TokenCount, likely
from server.generation.chat_request import MAX_CHOICES, GenerationBody
from server.generation.framing import PlainEnding
from server.generation.launch import ReadPrompt, answer, take_model, until_left
from server.generation.params import GenerationParams, check_choices, check_generates, generation_params
from server.generation.stream import ChoiceDelta
from server.generation.structured_output import text_form
from server.http.errors import refuse
from server.http.fields import Answer, NotYet, TextOrList, TokenIds, TokenLimit, TopLogprobs, texts_or_ids
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
Finish = Literal["stop", "length"]


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


class CompletionLogprobs(Answer):
    """Parallel lists, one element per token; `text_offset` counts characters of the choice's text.

    The first token of an echoed prompt has null for both numbers: nothing precedes it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def add(self, other: "CompletionLogprobs") -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class CompletionChoice(Answer):
    """One answer to one prompt; index = prompt * n + choice. `finish_reason` is null only inside a stream."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(Identified, kw_only=True):
    """Answer of POST /v1/completions, and each event of its stream (there `usage` as in ChatChunk)."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class Echo(NamedTuple):
    """A prompt to repeat. pieces: its tokens' bytes. hidden: characters that they begin with and `text` does not."""

    text: str
    pieces: tuple[bytes, ...]
    hidden: int


def echo_of(prompt: str | Sequence[int], pieces: tuple[bytes, ...]) -> Echo:
    """The prompt as it was given; `pieces` of a text may have more (a BOS of our own) or less (it was cut)."""
    text = b"".join(pieces).decode("utf-8", "replace")
    shown = prompt if isinstance(prompt, str) and text.endswith(prompt) else text
    return Echo(shown, pieces, len(text) - len(shown))


Piece = tuple[str, CompletionLogprobs | None]  # text and its lists


class TextChoice:
    """One choice of a completion, delta by delta. `alternatives` None = no logprobs.
    `text_offset` is the number of characters of the choice's text before the token; a token inside a code point
    shares the offset of its beginning."""

    def __init__(self, alternatives: int | None, echo: Echo | None) -> None:
        self._alternatives, self._echo = alternatives, echo
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0
        self._pieces: list[Piece] = []
        self._finish: Finish | None = None
        self._score, self._tokens = 0.0, 0

    @property
    def mean_logprob(self) -> float:
        """Log-probability per token; the engine must have reported them."""
        return self._score / self._tokens if self._tokens else 0.0

    def pieces(self, delta: Delta) -> list[Piece]:
        """What is new with this delta; before the first comes the echo."""
        pieces: list[Piece] = []
        if self._echo is not None:
            echo, self._echo = self._echo, None
            of_prompt = None if self._alternatives is None else self._prompt_lists(echo, delta.prompt_logprobs)
            pieces.append((echo.text, of_prompt))
        self._score += sum(entry.logprob for entry in delta.logprobs)
        self._tokens += len(delta.logprobs)
        lists = None
        if self._alternatives is not None and delta.logprobs:
            lists = self._lists(delta.logprobs, self._alternatives)
        if delta.text or lists:
            pieces.append((delta.text, lists))
        self._pieces += pieces
        if delta.finish is not None:
            self._finish = FINISH_NAMES[delta.finish]
        return pieces

    def answer(self, number: int) -> CompletionChoice:
        lists = None if self._alternatives is None else CompletionLogprobs([], [], [], [])
        for _, more in self._pieces:
            if lists is not None and more is not None:
                lists.add(more)
        return CompletionChoice("".join(text for text, _ in self._pieces), number, lists, self._finish)

    def _prompt_lists(self, echo: Echo, logprobs: Sequence[TextLogprob]) -> CompletionLogprobs:
        """The lists of an echoed prompt: a token more than `logprobs`, as nothing precedes the first."""
        self._characters -= echo.hidden
        first = echo.pieces[0]
        lists = CompletionLogprobs([first.decode("utf-8", "replace")], [None], [None], [self._characters])
        self._characters += len(self._decoder.decode(first))
        lists.add(self._lists(logprobs, self._alternatives or 0))
        lists.text_offset = [max(0, place) for place in lists.text_offset]
        return lists

    def _lists(self, logprobs: Sequence[TextLogprob], alternatives: int) -> CompletionLogprobs:
        """The lists for the next tokens. `top_logprobs` always has the chosen token too, as OpenAI's has."""
        lists = CompletionLogprobs([], [], [], [])
        for entry in logprobs:
            score = likely(entry.logprob)
            top = {token: likely(logprob) for token, _, logprob in entry.top[:alternatives]}
            lists.tokens.append(entry.token)
            lists.token_logprobs.append(score)
            lists.top_logprobs.append(top | {entry.token: score})
            lists.text_offset.append(self._characters)
            if not entry.is_hidden:
                self._characters += len(self._decoder.decode(entry.token_bytes))
        return lists


def best_choices(choices: Sequence[TextChoice], made: int, shown: int) -> Sequence[TextChoice]:
    """Of `made` choices of each prompt the `shown` likeliest per token, best first."""
    if made == shown:
        return choices
    best: list[TextChoice] = []
    for start in range(0, len(choices), made):
        best += sorted(choices[start : start + made], key=lambda choice: -choice.mean_logprob)[:shown]
    return best


@dataclass
class CompletionWriter(PlainEnding):
    envelope: Envelope
    count: TokenCount
    choices: Sequence[TextChoice]
    usage: StreamUsage
    made: int  # as in `best_choices`
    shown: int

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[Completion]:
        """One chunk per delta that has text, logprobs or a finish; an echo goes before in a chunk of its own."""
        chunks = []
        for number, delta in deltas:
            self.count.add(number, delta)
            finish = None if delta.finish is None else FINISH_NAMES[delta.finish]
            pieces = self.choices[number].pieces(delta) or ([("", None)] if finish else [])
            for place, (text, logprobs) in enumerate(pieces, 1):
                choice = CompletionChoice(text, number, logprobs, finish if place == len(pieces) else None)
                chunks.append(self.usage.on(self.envelope.around(Completion, [choice])))
        return chunks

    def last_chunks(self) -> list[Completion]:
        return self.usage.last(self.envelope.around(Completion, []))

    def answer(self) -> Completion:
        best = best_choices(self.choices, self.made, self.shown)
        choices = [choice.answer(number) for number, choice in enumerate(best)]
        return self.count.on(self.envelope.around(Completion, choices))


DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's default for /v1/completions


def completion_params(body: CompletionRequest, engine: Engine, settings: Settings) -> GenerationParams:
    """Check a completion body and say how to generate; raises Refusal naming the field."""
    shown = 1 if body.n is None else body.n
    made = shown if body.best_of is None else body.best_of
    if body.max_tokens == 0 and not body.echo:
        message = "Invalid 'max_tokens': 0 is below the minimum of 1, unless 'echo' is true."
        raise refuse(message, "max_tokens", "integer_below_min_value")
    if made < shown:
        raise refuse(f"'best_of' ({made}) is below 'n' ({shown}).", "best_of", "invalid_value")
    if made > shown and body.stream:
        raise refuse("'best_of' above 'n' cannot be streamed.", "best_of", "invalid_value")
    wanted = DEFAULT_COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    params = generation_params(body, engine, settings, wanted, body.logprobs)
    if params.each.denoising is not None and body.echo and body.logprobs is not None:
        why = "a block-diffusion model gives a prompt's tokens no probability"
        raise refuse(f"'echo' with 'logprobs' is not supported: {why}.", "echo", "unsupported_parameter")
    if made > shown:
        check_choices(made, "best_of", settings)
        # Ranked by log-probability, so the engine reports it whether or not the caller asked.
        params = replace(params, choices=made).sampled(logprobs=body.logprobs or 0)
    return params.sampled(prompt_logprobs=body.logprobs) if body.echo else params


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


def check_count(prompts: int, choices: int, most: int) -> None:
    """Raise Refusal when these prompts with so many choices each are more than one request may ask for."""
    if prompts * choices > most:
        message = f"{prompts} prompts times {choices} choices is more than the {most} requests taken at once."
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
    check_count(len(given), params.choices, service.settings.max_queued)
    service.admit(len(given) * params.choices)
    field = "prompt" if body.prompt_embeds is None else "prompt_embeds"
    prompts = await until_left(request, prompt_ids(given, field, engine, params.keep))
    params = await until_left(request, service.constrained(params, text_form(body)))
    envelope = service.envelope("cmpl-")
    stream = service.launch(envelope, prompts, params, field)
    count = TokenCount(stream.prompt_tokens, params.choices)
    echoes = [
        echo_of(prompt, engine.token_pieces(ids)) if body.echo and isinstance(ids, tuple) else None
        for prompt, ids in zip(given, prompts, strict=True)
    ]
    choices = [TextChoice(body.logprobs, echo) for echo in echoes for _ in range(params.choices)]
    usage = StreamUsage(count, body.stream_options)
    writer = CompletionWriter(envelope, count, choices, usage, params.choices, body.n or 1)
    return await answer(request, stream, writer, bool(body.stream))
