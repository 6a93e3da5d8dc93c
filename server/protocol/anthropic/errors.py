"""The body of every answer of these paths that is not a success, and the `error` event of a stream."""

from typing import Literal

from server.protocol.fields import Answer


class AnthropicErrorCode(Answer):
    """What a client can do something about by itself."""

    error_code: Literal["thread_unsupported_request"]


class AnthropicErrorDetail(Answer):
    """What went wrong; the message names the field at fault."""

    type: str
    message: str
    details: AnthropicErrorCode | None = None


class AnthropicError(Answer):
    """The body of every answer that is not a success."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str
