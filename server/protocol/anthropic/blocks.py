"""Content blocks of a request's messages. Images, documents and blocks of server tools are not among them."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.anthropic.cache_control import CacheControl
from server.protocol.anthropic.tools import ToolAddition, ToolRemoval
from server.protocol.fields import Body, Name, NotYet, text_or_list

MAX_BLOCKS = 4096
Identifier = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,256}$")]


class TextBlock(Body):
    """Text, of the caller's or of an earlier answer."""

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
    """The model made a call itself."""

    type: Literal["direct"]


class ToolUseBlock(Body):
    """A call the model made."""

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
ResultBlocks = Annotated[list[ResultBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]
ResultContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[ResultBlocks, Tag("texts")],
    Discriminator(text_or_list),
]


class ToolResultBlock(Body):
    """The result of a call."""

    type: Literal["tool_result"]
    tool_use_id: Identifier
    content: ResultContent | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None
    toolset_name: NotYet = None


TextBlocks = Annotated[list[TextBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]
UserBlock = Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]
UserBlocks = Annotated[list[UserBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]
AssistantBlocks = Annotated[list[AssistantBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]

SystemBlock = Annotated[TextBlock | ToolAddition | ToolRemoval, Field(discriminator="type")]
SystemBlocks = Annotated[list[SystemBlock], Field(max_length=MAX_BLOCKS, fail_fast=True)]

SystemText = Annotated[
    Annotated[str, Tag("text")] | Annotated[TextBlocks, Tag("texts")],
    Discriminator(text_or_list),
]
InstructionContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[SystemBlocks, Tag("texts")],
    Discriminator(text_or_list),
]
UserContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[UserBlocks, Tag("texts")],
    Discriminator(text_or_list),
]
AssistantContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[AssistantBlocks, Tag("texts")],
    Discriminator(text_or_list),
]


class UserTurn(Body):
    """What the user said, and results of calls."""

    role: Literal["user"]
    content: UserContent


class AssistantTurn(Body):
    """What the model said earlier."""

    role: Literal["assistant"]
    content: AssistantContent


class SystemTurn(Body):
    """An instruction in the middle of a conversation, for good or until the user's next turn."""

    role: Literal["system"]
    content: InstructionContent
    clear_at: Literal["next_user_message", "never"] | None = None


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, Field(discriminator="role")]
