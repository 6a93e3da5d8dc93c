"""The bodies of POST /api/chat and POST /api/generate."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.chat_request import Tool
from server.protocol.fields import MAX_MESSAGES, MAX_TOOLS, Body, Name, NotYet, TopLogprobs, text_or_object
from server.protocol.ollama.options import OllamaOptions

MAX_KEEP_ALIVE_CHARACTERS = 64

OllamaFormat = Annotated[
    Annotated[Literal["", "json"], Tag("text")] | Annotated[dict[str, Any], Tag("object")],
    Discriminator(text_or_object),
]
Think = Annotated[
    Annotated[Literal["low", "medium", "high"], Tag("text")] | Annotated[bool, Tag("object")],
    Discriminator(text_or_object),
]
KeepAlive = Annotated[
    Annotated[str, StringConstraints(max_length=MAX_KEEP_ALIVE_CHARACTERS), Tag("text")]
    | Annotated[float, Tag("object")],
    Discriminator(text_or_object),
]
Images = list[Any]  # refused by name when there is one


class OllamaGenerationBody(Body):
    """Fields that both routes share. A request streams unless `stream` is false."""

    model: Name
    stream: bool | None = None
    format: OllamaFormat | None = None
    options: OllamaOptions | None = None
    think: Think | None = None
    keep_alive: KeepAlive | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None

    # What does not fit the context is refused, never cut or shifted out.
    truncate: Literal[False] | None = None
    shift: Literal[False] | None = None


class OllamaCalledFunction(Body):
    """Name and arguments of a function that was called."""

    name: Name
    arguments: dict[str, Any]
    index: Annotated[int, Field(ge=0)] | None = None
    description: str | None = None


class OllamaToolCall(Body):
    """One call an assistant message made. Older clients give it no id."""

    function: OllamaCalledFunction
    id: Name | None = None
    type: Literal["function"] | None = None
    index: Annotated[int, Field(ge=0)] | None = None


class OllamaMessage(Body):
    """A message of any role. `tool_name` or `tool_call_id` say which call a tool's result answers."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaToolCall], Field(max_length=128, fail_fast=True)] | None = None
    tool_name: Name | None = None
    tool_call_id: Name | None = None
    name: Name | None = None
    images: Images | None = None


class OllamaChatRequest(OllamaGenerationBody):
    """POST /api/chat. Without messages it loads the model, or unloads it when `keep_alive` is 0."""

    messages: Annotated[list[OllamaMessage], Field(max_length=MAX_MESSAGES, fail_fast=True)] | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None


class OllamaGenerateRequest(OllamaGenerationBody):
    """POST /api/generate. Without a prompt it loads the model, or unloads it when `keep_alive` is 0."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None

    # Known, not honoured: only what says nothing is accepted.
    suffix: Literal[""] | None = None
    template: Literal[""] | None = None
    context: Annotated[list[int], Field(max_length=0)] | None = None
    images: Images | None = None
    width: NotYet = None
    height: NotYet = None
    steps: NotYet = None
