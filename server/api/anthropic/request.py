"""The bodies of POST /v1/messages and POST /v1/messages/count_tokens."""

import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StringConstraints

from server.generation.chat_request import MAX_URL_CHARACTERS, ImageText, StopTexts
from server.http.fields import MAX_MESSAGES, MAX_TOKENS, Body, Name, NotYet, Probability, Temperature, TextOrList


class CacheControl(Body):
    """A hint on a block, a tool or a whole request."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class DeclaredTool(Body):
    """A tool of the caller's. `input_schema` is enforced when the tool is strict, or has to be called."""

    type: Literal["custom"] | None = None
    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None  # inputs are always streamed as they are generated
    allowed_callers: list[Literal["direct"]] | None = None
    cache_control: CacheControl | None = None
    input_examples: NotYet = None


class _ToolUse(Body):
    disable_parallel_tool_use: bool | None = None


class AutoChoice(_ToolUse):
    type: Literal["auto"]


class AnyChoice(_ToolUse):
    type: Literal["any"]


class OneChoice(_ToolUse):
    type: Literal["tool"]
    name: Name


class NoChoice(Body):
    type: Literal["none"]


Choice = Annotated[AutoChoice | AnyChoice | OneChoice | NoChoice, Field(discriminator="type")]


class ToolByName(Body):
    """A tool that `tools` or an earlier addition declares."""

    type: Literal["tool_reference"]
    name: Name


class ToolDefinition(Body):
    """A tool that `tools` does not declare."""

    type: Literal["tool_definition"]
    definition: DeclaredTool


class ToolAddition(Body):
    """From here on the model is shown a tool."""

    type: Literal["tool_addition"]
    tool: Annotated[ToolByName | ToolDefinition, Field(discriminator="type")]
    cache_control: CacheControl | None = None


class ToolRemoval(Body):
    """From here on the model is not shown a tool any more."""

    type: Literal["tool_removal"]
    tool: ToolByName
    cache_control: CacheControl | None = None


Item = TypeVar("Item")
Blocks = Annotated[list[Item], Field(max_length=4096, fail_fast=True)]
IDENTIFIER = re.compile(r"^[a-zA-Z0-9_-]{1,256}$")
Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER.pattern)]


class TextBlock(Body):
    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[list[Any], Field(max_length=0)] | None = None
    parsed_output: Any = None  # an SDK's own reading of an earlier answer


class ThinkingBlock(Body):
    """What the model thought, as it came out. The signature holds the text when the answer left it out."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class DirectCaller(Body):
    type: Literal["direct"]


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: Identifier
    name: Name
    input: dict[str, Any]
    cache_control: CacheControl | None = None
    caller: DirectCaller | None = None
    toolset_name: NotYet = None


class ToolReference(Body):
    """A tool that a search for tools found: from here on the model is shown it."""

    type: Literal["tool_reference"]
    tool_name: Name
    cache_control: CacheControl | None = None


ResultBlock = Annotated[TextBlock | ToolReference, Field(discriminator="type")]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: Identifier
    content: TextOrList[str, Blocks[ResultBlock]] | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: NotYet = None


class ImageSource(Body):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: Annotated[str, StringConstraints(max_length=MAX_URL_CHARACTERS)]


class ImageAddress(Body):
    """Where an image lies, for a server that fetches it."""

    type: Literal["url"]
    url: ImageText


class ImageBlock(Body):
    type: Literal["image"]
    source: Annotated[ImageSource | ImageAddress, Field(discriminator="type")]
    cache_control: CacheControl | None = None


UserBlock = Annotated[TextBlock | ImageBlock | ToolResultBlock, Field(discriminator="type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]
SystemBlock = Annotated[TextBlock | ToolAddition | ToolRemoval, Field(discriminator="type")]


class UserTurn(Body):
    role: Literal["user"]
    content: TextOrList[str, Blocks[UserBlock]]


class AssistantTurn(Body):
    role: Literal["assistant"]
    content: TextOrList[str, Blocks[AssistantBlock]]


class SystemTurn(Body):
    """An instruction in the middle of a conversation, for good or until the user's next turn."""

    role: Literal["system"]
    content: TextOrList[str, Blocks[SystemBlock]]
    clear_at: Literal["next_user_message", "never"] | None = None


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]
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
    type: Literal["disabled"]


ThinkingSetting = Annotated[ThinkingOn | ThinkingAdaptive | ThinkingOff, Field(discriminator="type")]


class OutputSchema(Body):
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
    edits: Annotated[list[ClearThinking], Field(max_length=16)] | None = None


class RequestMetadata(Body):
    user_id: Annotated[str, StringConstraints(max_length=4096)] | None = None


class ConversationBody(Body):
    model: Name
    messages: Annotated[list[Turn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: TextOrList[str, Blocks[TextBlock]] | None = None
    tools: Annotated[list[DeclaredTool], Field(max_length=1024, fail_fast=True)] | None = None
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
