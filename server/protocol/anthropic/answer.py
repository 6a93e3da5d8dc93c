"""The answers of /v1/messages, as the OpenAPI document describes them and tests check them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from server.protocol.anthropic.errors import AnthropicErrorDetail
from server.protocol.fields import Answer

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class SaidText(Answer):
    """Text."""

    type: Literal["text"]
    text: str


class SaidThinking(Answer):
    """What the model thought; `thinking` is empty when the request asked for that."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class SaidToolUse(Answer):
    """A call."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


SaidBlock = Annotated[SaidText | SaidThinking | SaidToolUse, Field(discriminator="type")]


class OutputTokensDetails(Answer):
    """What the answer's tokens were spent on."""

    thinking_tokens: int


class MessageUsage(Answer):
    """Tokens. The prompt's are `input_tokens` and `cache_read_input_tokens` together."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    service_tier: Literal["standard"] | None = None


class MessageAnswer(Answer):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[SaidBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageDeltaEnd(Answer):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageEvent(Answer):
    """One event of a stream; which of the fields it has, its type says."""

    type: Literal[
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    ]
    message: MessageAnswer | None = None
    index: int | None = None
    content_block: SaidBlock | None = None
    delta: dict[str, str] | MessageDeltaEnd | None = None
    usage: MessageUsage | None = None
    error: AnthropicErrorDetail | None = None
    request_id: str | None = None


class TokenCountAnswer(Answer):
    """Tokens of a prompt."""

    input_tokens: int
