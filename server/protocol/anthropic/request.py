"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from server.protocol.anthropic.blocks import SystemText, Turn
from server.protocol.anthropic.cache_control import CacheControl
from server.protocol.anthropic.tools import Choice, DeclaredTool
from server.protocol.fields import MAX_MESSAGES, MAX_TOKENS, Body, Name, NotYet, Probability, Temperature
from server.protocol.generation_request import StopTexts

MAX_DECLARED_TOOLS = 1024

Display = Literal["summarized", "updates", "highlights", "omitted"]  # what is shown are the thoughts themselves


class ThinkingOn(Body):
    """Reason first, for at most so many tokens."""

    type: Literal["enabled"]
    budget_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    display: Display | None = None
    block_binding: dict[str, Any] | None = None  # what to do with thoughts of another conversation: nothing is checked


class ThinkingAdaptive(Body):
    """Reason as long as the model likes, if it reasons."""

    type: Literal["adaptive"]
    display: Display | None = None
    block_binding: dict[str, Any] | None = None  # what to do with thoughts of another conversation: nothing is checked


class ThinkingOff(Body):
    """Do not reason, where the model can be told."""

    type: Literal["disabled"]


ThinkingSetting = Annotated[ThinkingOn | ThinkingAdaptive | ThinkingOff, Field(discriminator="type")]


class OutputSchema(Body):
    """A JSON value that a schema accepts."""

    type: Literal["json_schema"]
    definition: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """The form of the answer, and how much work to put into it."""

    format: OutputSchema | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class ClearThinking(Body):
    """Which turns keep what was thought in them: all of them."""

    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"]


class ContextManagement(Body):
    """What to leave out of the conversation."""

    edits: Annotated[list[ClearThinking], Field(max_length=16)] | None = None


class RequestMetadata(Body):
    """Who asks; nothing is kept of it."""

    user_id: Annotated[str, StringConstraints(max_length=4096)] | None = None


class ConversationBody(Body):
    """What makes the prompt."""

    model: Name
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: SystemText | None = None
    tools: Annotated[list[DeclaredTool], Field(max_length=MAX_DECLARED_TOOLS, fail_fast=True)] | None = None
    tool_choice: Choice | None = None
    thinking: ThinkingSetting | None = None
    output_config: OutputConfig | None = None
    context_management: ContextManagement | None = None
    cache_control: CacheControl | None = None
    speed: Literal["standard"] | None = None

    # Known, not honoured.
    mcp_servers: Annotated[list[Any], Field(max_length=0)] | None = None


class CountTokensRequest(ConversationBody):
    """POST /v1/messages/count_tokens."""


class MessagesRequest(ConversationBody):
    """POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)]
    stream: bool | None = None
    stop_sequences: StopTexts | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Field(ge=0, le=MAX_TOKENS)] | None = None

    # Accepted as Anthropic accepts them: nothing of them changes the answer.
    metadata: RequestMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None

    # Known, not honoured.
    thread: dict[str, Any] | None = None  # refused with a code of its own, at which SDKs go on without it
    container: NotYet = None
    inference_geo: NotYet = None
    diagnostics: NotYet = None
    fallbacks: NotYet = None
