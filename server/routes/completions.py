"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.errors import CallerError
from server.engine_seam import EngineLike
from server.http.body import BoundedRoute
from server.http.errors import refuse
from server.http.sse import PlainEnding
from server.protocol.completion_answer import Completion
from server.protocol.completion_request import CompletionRequest
from server.protocol.openapi_responses import answers
from server.requests.params import check_model, completion_decoding
from server.requests.structured_output import text_form
from server.service import answer, service_of, until_left
from server.settings import Settings
from server.writers.merged import ChoiceDelta
from server.writers.text_choice import Best, Echo, TextChoice
from server.writers.usage import FINISH_NAMES, Envelope, StreamUsage, TokenCount

router = APIRouter(route_class=BoundedRoute)


@router.post("/v1/completions", response_model=None, responses=answers(Completion, Completion))
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Continue one prompt or several, given as text or as token ids; whole or as a stream of events."""
    service = service_of(request)
    model = check_model(body.model, service.engine.info, service.settings)
    decoding = completion_decoding(body, service.engine, service.settings)
    wanted = _prompts(body)
    _check_count(len(wanted), decoding.choices, service.settings)
    service.admit(len(wanted) * decoding.choices)
    reading = _tokens(wanted, service.engine, len(wanted) > 1, decoding.keep)
    prompts = await until_left(request, reading)
    decoding = await until_left(request, service.constrained(decoding, text_form(body)))
    envelope = service.envelope("cmpl", model)
    stream = service.launch(envelope, prompts, decoding, "prompt")
    count = TokenCount(stream.prompt_tokens, decoding.choices)
    echoes = [_echo(*pair, service.engine) if body.echo else None for pair in zip(wanted, prompts, strict=True)]
    choices = [TextChoice(body.logprobs, echo) for echo in echoes for _ in range(decoding.choices)]
    best = Best(decoding.choices, body.n or 1)
    writer = CompletionWriter(envelope, count, choices, StreamUsage(count, body.stream_options), best)
    return await answer(request, stream, writer, bool(body.stream))


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    ids = [item for item in prompt if isinstance(item, int)]
    return [ids] if ids else [item for item in prompt if not isinstance(item, int)]


def _check_count(prompts: int, choices: int, settings: Settings) -> None:
    if prompts > settings.max_prompts:
        message = f"Invalid 'prompt': too many elements. At most {settings.max_prompts} are allowed."
        raise refuse(message, "prompt", "array_above_max_length")
    if prompts * choices > settings.max_queued:
        message = (
            f"{prompts} prompts times {choices} choices is more than the {settings.max_queued} requests taken at once."
        )
        raise refuse(message, "prompt", "array_above_max_length")


async def _tokens(
    wanted: Sequence[str | list[int]], engine: EngineLike, is_list: bool, keep: int | None
) -> list[tuple[int, ...]]:
    prompts = []
    for number, prompt in enumerate(wanted):
        try:
            if isinstance(prompt, str):
                prompts.append(await engine.text_prompt(prompt, keep))
            else:
                prompts.append(engine.check_ids(prompt[-keep:] if keep else prompt, "prompt"))
        except CallerError as error:
            if is_list and error.param is not None and error.param.startswith("prompt"):
                error.param = f"prompt[{number}]{error.param.removeprefix('prompt')}"
            raise
    return prompts


def _echo(wanted: str | list[int], ids: tuple[int, ...], engine: EngineLike) -> Echo:
    """The prompt as it was given; the tokens of a text may stand for more (a BOS of our own) or less (it was cut)."""
    pieces = engine.token_pieces(ids)
    text = b"".join(pieces).decode("utf-8", "replace")
    if isinstance(wanted, str) and text.endswith(wanted):
        return Echo(wanted, pieces, len(text) - len(wanted))
    return Echo(text, pieces)


class CompletionWriter(PlainEnding):
    """Chunks and answers of one completion request."""

    def __init__(
        self, envelope: Envelope, count: TokenCount, choices: Sequence[TextChoice], usage: StreamUsage, best: Best
    ) -> None:
        self._envelope = envelope
        self._count = count
        self._choices = choices
        self._usage = usage
        self._best = best

    @property
    def finished(self) -> bool:
        """True when every choice has finished."""
        return self._count.finished

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        """One chunk per delta that has text, logprobs or a finish; an echo goes before in a chunk of its own."""
        chunks = []
        for number, delta in deltas:
            self._count.add(number, delta)
            pieces = self._choices[number].pieces(delta)
            if delta.finish is not None and not pieces:
                pieces = [("", None)]
            for place, (text, logprobs) in enumerate(pieces, 1):
                is_last = place == len(pieces)
                finish = FINISH_NAMES[delta.finish] if delta.finish is not None and is_last else None
                chunks.append(self._chunk(number, text, logprobs, finish))
        return chunks

    def _chunk(self, number: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        part = {"text": text, "index": number, "logprobs": logprobs, "finish_reason": finish}
        return self._usage.on(self._envelope.envelope("text_completion", [part]))

    def last_chunks(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        return self._usage.last(self._envelope.envelope("text_completion", []))

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""
        for number, delta in deltas:
            self._count.add(number, delta)
            self._choices[number].take(delta)

    def answer(self) -> dict[str, Any]:
        """The text_completion object."""
        choices = [choice.answer(number) for number, choice in enumerate(self._best.of(self._choices))]
        return self._envelope.envelope("text_completion", choices) | {"usage": self._count.usage()}
