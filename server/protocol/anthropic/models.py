"""The list of models for callers of Anthropic's SDKs."""

from typing import Literal

from server.protocol.fields import Answer


class AnthropicModel(Answer):
    """One model, or one of its adapters. created_at: RFC 3339. The token limits are the context window."""

    id: str
    type: Literal["model"]
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    max_input_tokens: int | None
    max_tokens: int | None


class AnthropicModelPage(Answer):
    """Some of the models, in their order."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None
