"""What every answer of a request has in common: its identity, its token counts, the name of its finish."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from engine.request import Delta, FinishReason
from server.protocol.generation_request import StreamOptions

# A stop string ends a request by aborting it; nobody reads the answer of a client that left.
FINISH_NAMES: Mapping[FinishReason, str] = MappingProxyType(
    {FinishReason.STOP: "stop", FinishReason.LENGTH: "length", FinishReason.ABORT: "stop"}
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields that are the same in an answer and in each of its chunks; `created` is Unix seconds."""

    id: str
    created: int
    model: str
    fingerprint: str
    names_tier: bool = False  # the caller gave a service_tier: say that there is only one

    def wrap(self, kind: str, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """An answer or chunk around these choices, without its usage; `kind` is OpenAI's `object`."""
        tier = {"service_tier": "default"} if self.names_tier else {}
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        } | tier


class StreamUsage:
    """`usage` in the chunks of a stream: left out; null until a last chunk; or on every chunk, as counted so far."""

    def __init__(self, count: "TokenCount", options: StreamOptions | None) -> None:
        self._count = count
        self._is_asked = bool(options and options.include_usage)
        self._is_continuous = bool(options and options.continuous_usage_stats)

    def on(self, chunk: dict[str, Any]) -> dict[str, Any]:
        """The chunk with its usage."""
        if not self._is_asked:
            return chunk
        return chunk | {"usage": self._count.usage() if self._is_continuous else None}

    def last(self, envelope: dict[str, Any]) -> list[dict[str, Any]]:
        """The chunk after all choices have finished, if usage was asked for."""
        return [envelope | {"usage": self._count.usage()}] if self._is_asked else []


class TokenCount:
    """Counts the tokens of a request; a prompt counts once, however many choices it has.

    has_prediction: guesses from the caller's prediction are counted as well, once a choice has finished.
    """

    def __init__(self, prompt_tokens: Sequence[int], choices_per_prompt: int, has_prediction: bool = False) -> None:
        self._prompt = sum(prompt_tokens[::choices_per_prompt])
        self._per_prompt = choices_per_prompt
        self._completion = 0
        self._cached = 0
        self._reasoning = 0
        self._has_prediction = has_prediction
        self._predicted = self._predicted_right = 0
        self._unfinished = len(prompt_tokens)

    @property
    def finished(self) -> bool:
        """True when every choice has finished."""
        return self._unfinished == 0

    def add(self, choice: int, delta: Delta) -> None:
        """Count one delta."""
        self._completion += len(delta.token_ids)
        if delta.finish is None:
            return
        self._unfinished -= 1
        if delta.timings is not None:
            self._predicted += delta.timings.predicted_tokens
            self._predicted_right += delta.timings.accepted_predicted_tokens
        if delta.timings is not None and choice % self._per_prompt == 0:
            self._cached += delta.timings.cached_tokens

    def add_reasoning(self, tokens: int) -> None:
        """Say how many of the counted tokens were spent on reasoning."""
        self._reasoning += tokens

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object."""
        details = {"reasoning_tokens": self._reasoning}
        if self._has_prediction:
            details["accepted_prediction_tokens"] = self._predicted_right
            details["rejected_prediction_tokens"] = self._predicted - self._predicted_right
        return {
            "prompt_tokens": self._prompt,
            "completion_tokens": self._completion,
            "total_tokens": self._prompt + self._completion,
            "prompt_tokens_details": {"cached_tokens": self._cached},
            "completion_tokens_details": details,
        }
