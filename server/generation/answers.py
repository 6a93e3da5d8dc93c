"""What every answer has in common: its identity, token counts, log-probabilities and the name of its finish."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from msgspec import UNSET, UnsetType

from engine.request import Delta, FinishReason, RequestTimings, TextLogprob, rate
from server.generation.chat_request import StreamOptions
from server.http.fields import Answer


class PromptDetails(Answer):
    """Prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(Answer):
    """Completion tokens spent on reasoning; of a request with a prediction, its tokens that were right and wrong."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(Answer):
    """How long a request took, beside its usage; the names up to `draft_n_accepted` are llama-server's.

    *_n: tokens of all choices, cached: found, prompt: computed, draft: guessed. *_ms: milliseconds of the slowest one,
    first_token_ms of the first. devices: that computed it, in order.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    draft_n: int
    draft_n_accepted: int
    queue_ms: float
    first_token_ms: float
    devices: list[str]

    @classmethod
    def of(cls, found: Sequence[RequestTimings], prompts: Sequence[RequestTimings]) -> "Timings":
        """Those of all choices. prompts: of the choices whose prompt counts."""
        computed = sum(each.computed_tokens for each in prompts)
        prompt_ms, predicted_ms = (max(each.prompt_ms for each in found), max(each.generate_ms for each in found))
        generated = sum(each.generated_tokens for each in found)
        return cls(
            sum(each.cached_tokens for each in prompts),
            computed,
            round(prompt_ms, 3),
            round(rate(computed, prompt_ms), 3),
            generated,
            round(predicted_ms, 3),
            round(rate(generated - len(found), predicted_ms), 3),
            sum(each.drafted_tokens for each in found),
            sum(each.accepted_tokens for each in found),
            round(max(each.queue_ms for each in found), 3),
            round(min((each.first_token_ms for each in found if each.first_token_ms), default=0.0), 3),
            list(dict.fromkeys(device for each in found for device in each.devices)),
        )


# A stop string ends a request by aborting it; nobody reads the answer of a client that left.
FINISH_NAMES: Mapping[FinishReason, Literal["stop", "length"]] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "stop",
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that are the same in an answer and in each of its chunks; `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str
    names_tier: bool = False  # the caller gave a service_tier: say that there is only one

    def around(self, kind: type["Whole"], choices: Sequence[Any]) -> "Whole":
        """An answer or chunk of this kind around its choices, without its usage."""
        return kind(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=list(choices),
            service_tier="default" if self.names_tier else UNSET,
        )


class Identified(Answer, kw_only=True):
    """The fields of a completion and of each of its chunks, whose class says `object` and what a choice is.

    `service_tier` is there when the request named one. `usage` of a chunk, when stream_options.include_usage was asked;
    `timings` stand beside the last one.
    """

    id: str
    object: str = ""
    created: int
    model: str
    system_fingerprint: str
    choices: list[Any]
    service_tier: Literal["default"] | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET


Whole = TypeVar("Whole", bound=Identified)


class StreamUsage:
    """`usage` in the chunks of a stream: left out; null until a last chunk; or on every chunk, as counted so far."""

    def __init__(self, count: "TokenCount", options: StreamOptions | None) -> None:
        self._count = count
        self._is_asked = bool(options and options.include_usage)
        self._is_continuous = bool(options and options.continuous_usage_stats)

    def on(self, chunk: Whole) -> Whole:
        if self._is_asked:
            chunk.usage = self._count.usage() if self._is_continuous else None
        return chunk

    def last(self, chunk: Whole) -> list[Whole]:
        return [self._count.on(chunk)] if self._is_asked else []


class TokenCount:
    """Counts the tokens of a request; a prompt counts once, however many choices it has. reasoning: of the completion.
    has_prediction: guesses from the caller's prediction are counted as well, once a choice has finished."""

    def __init__(self, prompt_tokens: Sequence[int], choices_per_prompt: int, has_prediction: bool = False) -> None:
        self._prompt = sum(prompt_tokens[::choices_per_prompt])
        self._per_prompt = choices_per_prompt
        self._completion, self.reasoning = 0, 0
        self._has_prediction = has_prediction
        self._unfinished = len(prompt_tokens)
        self._timings: list[RequestTimings] = []
        self._prompt_timings: list[RequestTimings] = []

    @property
    def finished(self) -> bool:
        return self._unfinished == 0

    def add(self, choice: int, delta: Delta) -> None:
        self._completion += len(delta.token_ids)
        if delta.finish is None:
            return
        self._unfinished -= 1
        if delta.timings is not None:
            self._timings.append(delta.timings)
            if choice % self._per_prompt == 0:
                self._prompt_timings.append(delta.timings)

    def on(self, whole: Whole) -> Whole:
        """An answer, or the last chunk of a stream, with what was used and how long it took."""
        whole.usage = self.usage()
        if self._timings:
            whole.timings = Timings.of(self._timings, self._prompt_timings)
        return whole

    def usage(self) -> Usage:
        spent = CompletionDetails(self.reasoning)
        if self._has_prediction:
            right = sum(each.accepted_predicted_tokens for each in self._timings)
            spent.accepted_prediction_tokens = right
            spent.rejected_prediction_tokens = sum(each.predicted_tokens for each in self._timings) - right
        total = self._prompt + self._completion
        cached = sum(each.cached_tokens for each in self._prompt_timings)
        return Usage(self._prompt, self._completion, total, PromptDetails(cached), spent)


UNLIKELY = -9999.0  # what OpenAI sends instead of minus infinity


def likely(logprob: float) -> float:
    return logprob if logprob > UNLIKELY else UNLIKELY


class TopLogprob(Answer):
    """One likely token; `bytes` are its UTF-8 bytes, which may be part of a code point."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprobEntry(TopLogprob):
    top_logprobs: list[TopLogprob]


def chat_entries(logprobs: Sequence[TextLogprob], alternatives: int) -> list[TokenLogprobEntry]:
    """`choices[].logprobs.content`: the chosen token and the `alternatives` likeliest ones."""
    entries = []
    for entry in logprobs:
        top = [TopLogprob(token, list(raw), likely(logprob)) for token, raw, logprob in entry.top[:alternatives]]
        entries.append(TokenLogprobEntry(entry.token, list(entry.token_bytes), likely(entry.logprob), top))
    return entries
