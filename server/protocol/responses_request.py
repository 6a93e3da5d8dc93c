"""The body of POST /v1/responses."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.protocol.fields import (
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOLS,
    Body,
    DenoisingSteps,
    Effort,
    EntropyBound,
    Metadata,
    MetadataKey,
    Name,
    NotYet,
    Penalty,
    Priority,
    Probability,
    RepetitionPenalty,
    Seed,
    ServiceTier,
    Temperature,
    TemplateOptions,
    TokenLimit,
    TopK,
    TopLogprobs,
    UnmaskingStrategy,
    User,
    text_or_list,
)
from server.protocol.responses_tools import ResponseTool, ResponseToolChoice
from server.protocol.structured_outputs import JsonObjectFormat, SchemaName, TextFormat

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Body):
    """One piece of text, of the caller's or of an earlier answer; what an answer said about it is ignored."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=1024)] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None


InputTexts = Annotated[list[InputText], Field(max_length=1024, fail_fast=True)]
InputContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[InputTexts, Tag("texts")],
    Discriminator(text_or_list),
]


class InputMessage(Body):
    """What somebody said; also an assistant's message as it came out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: InputContent
    type: Literal["message"] | None = None
    id: Name | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCallItem(Body):
    """A call the model made, as it came out."""

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: str
    id: Name | None = None
    status: ItemStatus | None = None
    parsed_arguments: Any = None
    namespace: Name | None = None
    caller: NotYet = None


class FunctionOutputItem(Body):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Name
    output: InputContent
    id: Name | None = None
    status: ItemStatus | None = None


class CustomCallItem(Body):
    """A call of a custom tool, as it came out."""

    type: Literal["custom_tool_call"]
    call_id: Name
    name: Name
    input: str
    id: Name | None = None
    status: ItemStatus | None = None
    namespace: Name | None = None
    caller: NotYet = None


class CustomOutputItem(Body):
    """The result of a call of a custom tool."""

    type: Literal["custom_tool_call_output"]
    call_id: Name
    output: InputContent
    id: Name | None = None
    status: ItemStatus | None = None


class ReasoningText(Body):
    """A piece of what the model thought."""

    type: Literal["reasoning_text"]
    text: str


class SummaryText(Body):
    """A piece of a summary."""

    type: Literal["summary_text"]
    text: str


class ReasoningItem(Body):
    """What the model thought, as it came out. Nothing of it is encrypted here."""

    type: Literal["reasoning"]
    id: Name | None = None
    summary: Annotated[list[SummaryText], Field(max_length=1024)] = Field(default_factory=list)
    content: Annotated[list[ReasoningText], Field(max_length=1024)] | None = None
    encrypted_content: NotYet = None
    status: ItemStatus | None = None


def _kind(value: object) -> str:
    """Tag of an input item; a message may leave its type out."""
    found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "message" if found is None else str(found)


InputItem = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[FunctionOutputItem, Tag("function_call_output")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CustomOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(_kind),
]
InputItems = Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
Input = Annotated[
    Annotated[str, Tag("text")] | Annotated[InputItems, Tag("texts")],
    Discriminator(text_or_list),
]


class TextSchemaFormat(Body):
    """A JSON value that a schema accepts, with the fields of the chat route's `json_schema` beside the type."""

    type: Literal["json_schema"]
    name: SchemaName
    definition: dict[str, Any] = Field(alias="schema")
    description: Annotated[str, StringConstraints(max_length=65_536)] | None = None
    strict: bool | None = None


TextFormats = Annotated[TextFormat | JsonObjectFormat | TextSchemaFormat, Field(discriminator="type")]


class TextSettings(Body):
    """The form of the text."""

    format: TextFormats | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningSettings(Body):
    """How much to think. Summaries may be asked for; what comes is the reasoning itself."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(Body):
    """Options that only make sense with `stream`."""

    include_obfuscation: Literal[False] | None = None


Include = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


class ResponsesRequest(Body):
    """POST /v1/responses. Defaults are OpenAI's; what an absent `store` means depends on the settings."""

    model: Name
    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None  # of built-in tools; there are none
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Probability | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_logprobs: TopLogprobs | None = None
    include: Annotated[list[Include], Field(max_length=16)] | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    truncation: Literal["disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Name | None = None
    metadata: Metadata | None = None
    service_tier: ServiceTier | None = None
    user: User | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    client_metadata: Annotated[dict[MetadataKey, Any], Field(max_length=64)] | None = None  # Codex tells of itself

    # Extensions with the names the chat route has.
    top_k: TopK | None = None
    min_p: Probability | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None
    priority: Priority | None = None
    thinking_token_budget: TokenLimit | None = None
    chat_template_kwargs: TemplateOptions | None = None
    denoising_steps: DenoisingSteps | None = None
    unmasking_strategy: UnmaskingStrategy | None = None
    confidence_threshold: Probability | None = None
    entropy_bound: EntropyBound | None = None

    # Known, not honoured.
    conversation: NotYet = None
    prompt: NotYet = None
    context_management: NotYet = None
    prompt_cache_retention: NotYet = None
