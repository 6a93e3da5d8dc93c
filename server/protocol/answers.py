"""OpenAI answers and chunks as the OpenAPI document describes them.

The routes send plain dictionaries of exactly these shapes (a chunk is encoded per token); tests hold the two together.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class Answer(BaseModel):
    """Nothing is left out and nothing is added."""

    model_config = ConfigDict(extra="forbid")


class ErrorDetail(Answer):
    """What went wrong; `param` is the dotted path of the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Answer):
    """The body of every answer that is not a success."""

    error: ErrorDetail


class PromptDetails(Answer):
    """Prompt tokens found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(Answer):
    """Completion tokens spent on reasoning."""

    reasoning_tokens: int


class Usage(Answer):
    """Token counts of one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class TopLogprob(Answer):
    """One likely token; `bytes` are its UTF-8 bytes, which may be part of a code point."""

    token: str
    bytes: list[int] | None
    logprob: float


class TokenLogprobEntry(TopLogprob):
    """The token that was chosen and the likeliest ones."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer):
    """One entry per generated token."""

    content: list[TokenLogprobEntry]
    refusal: None = None


Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]


class CalledFunctionAnswer(Answer):
    """Name and JSON text of the arguments."""

    name: str
    arguments: str


class ToolCallAnswer(Answer):
    """One call the model made."""

    id: str
    type: Literal["function"]
    function: CalledFunctionAnswer


class AnswerMessage(Answer):
    """What the model said; `content` is null when it only called tools."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallAnswer] | None = None


class ChatChoice(Answer):
    """One of n answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish


class ChatCompletion(Answer):
    """Answer of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    service_tier: Literal["default"] | None = None


class FunctionDelta(Answer):
    """The name comes first, the arguments follow in pieces."""

    name: str | None = None
    arguments: str


class ToolCallDelta(Answer):
    """What is new of call `index`; id, type and name come with its first piece."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChunkDelta(Answer):
    """What is new in this chunk."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChatChunkChoice(Answer):
    """The part of one choice in a chunk."""

    index: int
    delta: ChunkDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatChunk(Answer):
    """One event of a streamed chat; `usage` is there only when stream_options.include_usage was asked."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None
    system_fingerprint: str
    service_tier: Literal["default"] | None = None


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


class Model(Answer):
    """The served model; the last five fields are extensions."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int
    context_length: int
    meta: dict[str, Any]


class ModelList(Answer):
    """Answer of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class Health(Answer):
    """State of the server: ok, or why not; and what computes: 'CPU', 'HTP emulator' or 'NPU'."""

    status: Literal["ok", "unavailable"]
    state: str
    device: str | None = None


_ERROR_TEXTS: Mapping[int | str, str] = MappingProxyType(
    {
        400: "The request is wrong; `param` names the field.",
        401: "The API key is missing or wrong.",
        403: "The Host is not served here.",
        404: "Unknown model or path.",
        408: "The body came too slowly.",
        413: "The body is too large.",
        415: "The body is not application/json, or it is compressed.",
        429: "Too fast for the limits of this key or address; come back after Retry-After seconds.",
        431: "The request line and headers are too large.",
        500: "The server is at fault.",
        503: "Full, loading or shutting down; come back after Retry-After seconds.",
        504: "The request took too long.",
        "default": "Any other error has the same body.",
    }
)


def answers(whole: type[Answer], chunk: type[Answer]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of a route that answers `whole` as JSON, or a stream of `chunk` events when the request asked for one."""
    event = {
        "schema": {"type": "string", "description": f"`data: ` events of {chunk.__name__}, then `data: [DONE]`"},
        "x-event-schema": {"$ref": f"#/components/schemas/{chunk.__name__}"},
    }
    good = {"model": whole, "description": "The answer.", "content": {"text/event-stream": event}}
    return {200: good} | error_answers()


def errors(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of the error answers of a route."""
    return {status: {"model": ErrorBody, "description": _ERROR_TEXTS[status]} for status in statuses}


def error_answers(*statuses: int | str) -> dict[int | str, dict[str, Any]]:
    """OpenAPI of these error answers, by default all that a route with a body has. 401 is added to all."""
    return errors(*(statuses or (status for status in _ERROR_TEXTS if status != 401)))
