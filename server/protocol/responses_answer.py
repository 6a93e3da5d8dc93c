"""The answers of /v1/responses as the OpenAPI document describes them."""

from typing import Annotated, Any, Literal

from pydantic import Field

from server.protocol.chat_answer import TokenLogprobEntry
from server.protocol.fields import Answer

Status = Literal["in_progress", "completed", "incomplete"]
ResponseState = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Answer):
    """What the model said."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenLogprobEntry]


class OutputMessage(Answer):
    """One message."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Status
    content: list[OutputText]


class OutputCall(Answer):
    """One function call; `arguments` is the JSON text of an object."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class OutputCustomCall(Answer):
    """One call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    status: Status
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class OutputThought(Answer):
    """A piece of reasoning."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Answer):
    """What the model thought."""

    id: str
    type: Literal["reasoning"]
    summary: list[Any]
    content: list[OutputThought]
    encrypted_content: None
    status: Status


class InputDetails(Answer):
    """Input tokens found in the prefix cache; writing to it costs nothing."""

    cache_write_tokens: int
    cached_tokens: int


class OutputDetails(Answer):
    """Output tokens spent on reasoning."""

    reasoning_tokens: int


class ResponseUsage(Answer):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponsePlainFormat(Answer):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class ResponseSchemaFormat(Answer):
    """A JSON value that a schema accepts."""

    type: Literal["json_schema"]
    name: str
    definition: dict[str, Any] = Field(alias="schema")
    description: str | None
    strict: bool


class ResponseChosenFunction(Answer):
    """The function that had to be called."""

    type: Literal["function", "custom"]
    name: str


class ResponseText(Answer):
    """Settings of the text."""

    format: Annotated[ResponsePlainFormat | ResponseSchemaFormat, Field(discriminator="type")]
    verbosity: str


class ResponseReasoning(Answer):
    """Settings of the reasoning."""

    effort: str | None
    summary: str | None


class ResponseFailure(Answer):
    """Why a response failed."""

    code: Literal["server_error", "invalid_prompt"]
    message: str


class IncompleteDetails(Answer):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseFunction(Answer):
    """A tool as it was given."""

    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ResponseCustomTool(Answer):
    """A custom tool as it was given."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: dict[str, str] | None = None


class ResponseNamespace(Answer):
    """Tools of a namespace as they were given."""

    type: Literal["namespace"]
    name: str
    description: str | None = None
    tools: list[dict[str, Any]]


class ResponseAnswer(Answer):
    """Answer of POST /v1/responses; every key is always there."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: ResponseState
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[OutputReasoning | OutputMessage | OutputCall | OutputCustomCall]
    error: ResponseFailure | None
    tools: list[ResponseFunction | ResponseCustomTool | ResponseNamespace]
    tool_choice: Literal["none", "auto", "required"] | ResponseChosenFunction
    truncation: Literal["disabled"]
    parallel_tool_calls: bool
    text: ResponseText
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ResponseReasoning
    user: str | None
    usage: ResponseUsage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: Literal["default"]
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class ResponseEvent(Answer):
    """One event of the stream; the other fields depend on `type`, which is also the name of the event."""

    type: str
    sequence_number: int
    response: ResponseAnswer | None = None
    item: OutputReasoning | OutputMessage | OutputCall | OutputCustomCall | None = None
    part: OutputText | OutputThought | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int | None = None
    delta: str | None = None
    text: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    logprobs: list[TokenLogprobEntry] | None = None
