"""Tools of a request, which of them may be called, and how they come and go in a conversation."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from server.protocol.anthropic.cache_control import CacheControl
from server.protocol.fields import Body, Name, NotYet


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
    """The model decides."""

    type: Literal["auto"]


class AnyChoice(_ToolUse):
    """The model has to call a tool."""

    type: Literal["any"]


class OneChoice(_ToolUse):
    """The model has to call this tool."""

    type: Literal["tool"]
    name: Name


class NoChoice(Body):
    """The model may not call a tool."""

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
