"""The answer of POST /v1/completions, which is also the shape of each event of its stream."""

from typing import Literal

from server.protocol.fields import Answer
from server.protocol.usage import Usage

Finish = Literal["stop", "length"]


class CompletionLogprobs(Answer):
    """Parallel lists, one element per token; `text_offset` counts characters of the choice's text.

    The first token of an echoed prompt has null for both numbers: nothing precedes it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Answer):
    """One answer to one prompt; index = prompt * n + choice. `finish_reason` is null only inside a stream."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(Answer):
    """Answer of POST /v1/completions, and each event of its stream (there `usage` as in ChatChunk)."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    system_fingerprint: str
