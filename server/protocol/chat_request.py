"""The body of POST /v1/chat/completions: messages, tools and what the chat template is told."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.fields import (
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOLS,
    Body,
    Effort,
    Metadata,
    Name,
    NotYet,
    ServiceTier,
    TemplateOptions,
    TokenLimit,
    TopLogprobs,
    text_or_list,
    text_or_object,
)
from server.protocol.generation_request import GenerationBody


class TextPart(Body):
    """One text part of a message's content."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None  # a hint for other servers; here every prefix is kept


TextParts = Annotated[list[TextPart], Field(min_length=1, max_length=1024, fail_fast=True)]
Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[TextParts, Tag("texts")],
    Discriminator(text_or_list),
]


class InstructionMessage(Body):
    """A system or developer message; both reach the chat template as `system`."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class UserMessage(Body):
    """What the user said."""

    role: Literal["user"]
    content: Content
    name: Name | None = None


class CalledFunction(Body):
    """Name and JSON text of the arguments of a function that was called."""

    name: Name
    arguments: str
    parsed_arguments: NotYet = None  # null in an SDK's own object


class ToolCall(Body):
    """One call an assistant message made. `index` is where a stream helper put it; the list already has that order."""

    id: Name
    type: Literal["function"]
    function: CalledFunction
    index: Annotated[int, Field(ge=0)] | None = None


class AssistantMessage(Body):
    """What the model said earlier, as an SDK sends it back."""

    role: Literal["assistant"]
    content: Content | None = None
    name: Name | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128, fail_fast=True)] | None = None
    reasoning_content: str | None = None
    refusal: NotYet = None
    audio: NotYet = None
    function_call: NotYet = None
    parsed: NotYet = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None
    provider_specific_fields: dict[str, Any] | None = None  # litellm's notes on an answer; it sends them back


class ToolMessage(Body):
    """The result of a tool call. Older clients repeat the function's name."""

    role: Literal["tool"]
    content: Content
    tool_call_id: Name
    name: Name | None = None


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionTool(Body):
    """What a function does and takes; `parameters` is a JSON schema, enforced when the function is strict."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    """A function the model may call."""

    type: Literal["function"]
    function: FunctionTool


class ChosenFunction(Body):
    """Name of a function."""

    name: Name


class NamedToolChoice(Body):
    """The function that has to be called."""

    type: Literal["function"]
    function: ChosenFunction


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("text")] | Annotated[NamedToolChoice, Tag("object")],
    Discriminator(text_or_object),
]


class PredictedContent(Body):
    """What most of the answer is expected to be; it comes sooner where that is right, and is the same either way."""

    type: Literal["content"]
    content: Content


class ChatRequest(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: PredictedContent | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None

    # What the chat template is told, and how long the model may think.
    reasoning_effort: Effort | None = None
    thinking_token_budget: TokenLimit | None = None
    chat_template_kwargs: TemplateOptions | None = None
    add_generation_prompt: bool | None = None

    # Accepted as OpenAI accepts them: nothing of them is visible in the answer.
    metadata: Metadata | None = None
    store: bool | None = None
    service_tier: ServiceTier | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None

    # Known, not honoured.
    functions: NotYet = None
    function_call: NotYet = None
    verbosity: Literal["medium"] | None = None
    audio: NotYet = None
    web_search_options: NotYet = None
    prompt_cache_retention: NotYet = None
    chat_template: NotYet = None
    continue_final_message: Literal[False] | None = None
    echo: Literal[False] | None = None
