"""The body of POST /v1/responses, with its functions, custom tools and namespaces of both."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag

from server.generation import chat_request as chat
from server.generation.chat_request import SamplingBody
from server.http import fields
from server.http.fields import MAX_MESSAGES, MAX_TOKENS, MAX_TOOLS, Body, Name, NotYet, TextOrList, TextOrObject


class ResponseFunctionTool(chat.FunctionTool):
    """A function the model may call; `parameters` is a JSON schema, enforced when the function is strict."""

    type: Literal["function"]


class PlainInput(Body):
    type: Literal["text"]


class GrammarInput(Body):
    """A text of this form. A regular expression is enforced, a grammar in Lark is shown to the model."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Annotated[str, StringConstraints(max_length=262_144)]


class CustomTool(Body):
    type: Literal["custom"]
    name: chat.ToolName
    description: str | None = None
    format: Annotated[PlainInput | GrammarInput, Field(discriminator="type")] | None = None


NamedTool = Annotated[ResponseFunctionTool | CustomTool, Field(discriminator="type")]


class NamespaceTool(Body):
    """Tools that belong together; a call names the namespace beside the tool."""

    type: Literal["namespace"]
    name: chat.ToolName
    description: str | None = None
    tools: Annotated[list[NamedTool], Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True)]


ResponseTool = Annotated[ResponseFunctionTool | CustomTool | NamespaceTool, Field(discriminator="type")]


class NamedFunction(Body):
    """The function, or the custom tool, that has to be called."""

    type: Literal["function", "custom"]
    name: Name


ResponseToolChoice = TextOrObject[Literal["none", "auto", "required"], NamedFunction]


@dataclass(frozen=True, slots=True)
class CalledAs:
    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def shown(self) -> str:
        """Its name to the model. No tool's own name has a dot."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class InputText(Body):
    """One piece of text, of the caller's or of an earlier answer; what an answer said about it is ignored."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: Annotated[list[Any], Field(max_length=1024)] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None


class InputImage(Body):
    type: Literal["input_image"]
    file_id: NotYet = None  # refused before image_url is missed
    image_url: chat.ImageText
    detail: Literal["auto", "low", "high"] | None = None


InputParts = Annotated[
    list[Annotated[InputText | InputImage, Field(discriminator="type")]], Field(max_length=1024, fail_fast=True)
]
InputTexts = Annotated[list[InputText], Field(max_length=1024, fail_fast=True)]


class InputMessage(Body):
    """What somebody said; also an assistant's message as it came out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrList[str, InputParts]
    type: Literal["message"] | None = None
    id: Name | None = None
    status: ItemStatus | None = None
    phase: Literal["commentary", "final_answer"] | None = None


class _CallItem(Body):
    call_id: Name
    name: Name
    id: Name | None = None
    status: ItemStatus | None = None
    namespace: Name | None = None
    caller: NotYet = None


class FunctionCallItem(_CallItem):
    type: Literal["function_call"]
    arguments: str
    parsed_arguments: Any = None


class CustomCallItem(_CallItem):
    """A call of a custom tool, as it came out."""

    type: Literal["custom_tool_call"]
    input: str


class _OutputItem(Body):
    call_id: Name
    output: TextOrList[str, InputTexts]
    id: Name | None = None
    status: ItemStatus | None = None


class FunctionOutputItem(_OutputItem):
    type: Literal["function_call_output"]


class CustomOutputItem(_OutputItem):
    type: Literal["custom_tool_call_output"]


class ReasoningText(Body):
    type: Literal["reasoning_text"]
    text: str


class SummaryText(Body):
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


class TextSchemaFormat(chat.NamedSchema):
    """A JSON value that a schema accepts, with the fields of the chat route's `json_schema` beside the type."""

    type: Literal["json_schema"]
    definition: dict[str, Any] = Field(alias="schema")


TextFormats = Annotated[chat.TextFormat | chat.JsonObjectFormat | TextSchemaFormat, Field(discriminator="type")]


class TextSettings(Body):
    format: TextFormats | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningSettings(Body):
    """How much to think. Summaries may be asked for; what comes is the reasoning itself."""

    effort: fields.Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(Body):
    include_obfuscation: Literal[False] | None = None


Include = Literal["message.output_text.logprobs", "reasoning.encrypted_content"]


class ResponsesRequest(SamplingBody):
    """POST /v1/responses. Defaults are OpenAI's; what an absent `store` means depends on the settings."""

    input: TextOrList[str, InputItems]
    instructions: str | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None
    max_tool_calls: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None  # of built-in tools; there are none
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    top_logprobs: fields.TopLogprobs | None = None
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
    metadata: fields.Metadata | None = None
    service_tier: fields.ServiceTier | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    client_metadata: Annotated[dict[fields.MetadataKey, Any], Field(max_length=64)] | None = None  # of Codex

    # Extensions with the names the chat route has.
    thinking_token_budget: fields.TokenLimit | None = None
    chat_template_kwargs: fields.TemplateOptions | None = None

    # Known, not honoured.
    conversation: NotYet = None
    prompt: NotYet = None
    context_management: NotYet = None
    prompt_cache_retention: NotYet = None
