"""Tools of POST /v1/responses: functions, custom tools, and namespaces of both."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.fields import MAX_TOOLS, Body, Name, text_or_object

ToolName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]


class ResponseFunctionTool(Body):
    """A function the model may call; `parameters` is a JSON schema, enforced when the function is strict."""

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class PlainInput(Body):
    """Any text."""

    type: Literal["text"]


class GrammarInput(Body):
    """A text of this form. A regular expression is enforced, a grammar in Lark is shown to the model."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, StringConstraints(max_length=262_144)]


class CustomTool(Body):
    """A tool whose input is one text."""

    type: Literal["custom"]
    name: ToolName
    description: str | None = None
    format: Annotated[PlainInput | GrammarInput, Field(discriminator="type")] | None = None


NamedTool = Annotated[ResponseFunctionTool | CustomTool, Field(discriminator="type")]


class NamespaceTool(Body):
    """Tools that belong together; a call names the namespace beside the tool."""

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


ResponseTool = Annotated[ResponseFunctionTool | CustomTool | NamespaceTool, Field(discriminator="type")]


class NamedFunction(Body):
    """The function, or the custom tool, that has to be called."""

    type: Literal["function", "custom"]
    name: Name


ResponseToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")] | Annotated[NamedFunction, Tag("object")],
    Discriminator(text_or_object),
]


@dataclass(frozen=True, slots=True)
class CalledAs:
    """What a tool is to the caller."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def shown(self) -> str:
        """Its name to the model. No tool's own name has a dot."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"
