"""The answer of POST /v1/chat/completions and the chunks of its stream.

The routes send plain dictionaries of exactly these shapes (a chunk is encoded per token); tests hold the two together.
"""

from typing import Literal

from server.protocol.fields import Answer
from server.protocol.usage import Usage


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
