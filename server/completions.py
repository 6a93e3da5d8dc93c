"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from engine.errors import CallerError
from engine.request import TextLogprob
from server.body import BoundedRoute
from server.engine_seam import EngineLike
from server.errors import refuse
from server.logprobs import CompletionLists, joined
from server.merged import Arrival
from server.params import check_model, completion_decoding
from server.service import answer, service_of, until_left
from server.settings import Settings
from server.usage import FINISH_NAMES, Head, TokenCount
from server.wire import CompletionRequest
from server.wire_answers import Completion, answers

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
    prompts = await until_left(request, _tokens(wanted, service.engine, len(wanted) > 1))
    head = service.head("cmpl", model)
    stream = service.launch(head, prompts, decoding, "prompt")
    count = TokenCount(stream.prompt_tokens, decoding.choices)
    includes_usage = bool(body.stream_options and body.stream_options.include_usage)
    writer = CompletionWriter(head, count, len(prompts) * decoding.choices, decoding.logprobs, includes_usage)
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
            f"{prompts} prompts times n = {choices} is more than the {settings.max_queued} requests taken at once."
        )
        raise refuse(message, "prompt", "array_above_max_length")


async def _tokens(wanted: Sequence[str | list[int]], engine: EngineLike, is_list: bool) -> list[tuple[int, ...]]:
    prompts = []
    for number, prompt in enumerate(wanted):
        try:
            if isinstance(prompt, str):
                prompts.append(await engine.text_prompt(prompt))
            else:
                prompts.append(engine.check_ids(prompt, "prompt"))
        except CallerError as error:
            if is_list and error.param is not None and error.param.startswith("prompt"):
                error.param = f"prompt[{number}]{error.param.removeprefix('prompt')}"
            raise
    return prompts


class CompletionWriter:
    """Chunks and answers of one completion request. `alternatives` None = no logprobs."""

    def __init__(
        self, head: Head, count: TokenCount, choices: int, alternatives: int | None, includes_usage: bool
    ) -> None:
        self._head = head
        self._count = count
        self._includes_usage = includes_usage
        self._choices = [_TextChoice(alternatives) for _ in range(choices)]

    @property
    def finished(self) -> bool:
        """True when every choice has finished."""
        return self._count.finished

    def chunks(self, arrivals: Sequence[Arrival]) -> list[dict[str, Any]]:
        """One chunk per delta that has text, logprobs or a finish."""
        chunks = []
        for number, delta in arrivals:
            self._count.add(number, delta)
            logprobs = self._choices[number].logprobs(delta.logprobs)
            if delta.text or logprobs or delta.finish is not None:
                finish = None if delta.finish is None else FINISH_NAMES[delta.finish]
                part = {"text": delta.text, "index": number, "logprobs": logprobs, "finish_reason": finish}
                chunk = self._head.envelope("text_completion", [part])
                chunks.append(chunk | {"usage": None} if self._includes_usage else chunk)
        return chunks

    def last_chunks(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        if not self._includes_usage:
            return []
        return [self._head.envelope("text_completion", []) | {"usage": self._count.usage()}]

    def take(self, arrivals: Sequence[Arrival]) -> None:
        """Keep arrivals for `answer`."""
        for number, delta in arrivals:
            self._count.add(number, delta)
            choice = self._choices[number]
            choice.texts.append(delta.text)
            logprobs = choice.logprobs(delta.logprobs)
            if logprobs:
                choice.lists.append(logprobs)
            if delta.finish is not None:
                choice.finish = FINISH_NAMES[delta.finish]

    def answer(self) -> dict[str, Any]:
        """The text_completion object."""
        choices = [
            {
                "text": "".join(choice.texts),
                "index": number,
                "logprobs": joined(choice.lists) if choice.reports_logprobs else None,
                "finish_reason": choice.finish,
            }
            for number, choice in enumerate(self._choices)
        ]
        return self._head.envelope("text_completion", choices) | {"usage": self._count.usage()}


class _TextChoice:
    def __init__(self, alternatives: int | None) -> None:
        self.texts: list[str] = []
        self.lists: list[dict[str, Any]] = []
        self.finish: str | None = None
        self._lists = None if alternatives is None else CompletionLists(alternatives)

    @property
    def reports_logprobs(self) -> bool:
        return self._lists is not None

    def logprobs(self, entries: Sequence[TextLogprob]) -> dict[str, Any] | None:
        return self._lists.lists(entries) if self._lists is not None and entries else None
