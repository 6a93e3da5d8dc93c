"""The answers of /v1/responses."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType, field
from pydantic import Field

from server.generation.answers import CompletionDetails, TokenLogprobEntry
from server.http.fields import Answer

ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseState = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class OutputText(Answer, kw_only=True):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[TokenLogprobEntry]


class OutputMessage(Answer, kw_only=True):
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


class _Call(Answer, kw_only=True):
    id: str
    type: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET


class OutputCall(_Call, kw_only=True):
    """One function call; `arguments` is the JSON text of an object."""

    type: Literal["function_call"] = "function_call"
    arguments: str


class OutputCustomCall(_Call, kw_only=True):
    type: Literal["custom_tool_call"] = "custom_tool_call"
    input: str


class OutputThought(Answer, kw_only=True):
    type: Literal["reasoning_text"] = "reasoning_text"
    text: str


class OutputReasoning(Answer, kw_only=True):
    id: str
    type: Literal["reasoning"] = "reasoning"
    summary: list[Any] = field(default_factory=list)
    content: list[OutputThought]
    encrypted_content: None = None
    status: ItemStatus


class InputDetails(Answer, kw_only=True):
    """Input tokens found in the prefix cache; writing to it costs nothing."""

    cache_write_tokens: int = 0
    cached_tokens: int


class ResponseUsage(Answer, kw_only=True):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: CompletionDetails
    total_tokens: int


class ResponsePlainFormat(Answer, kw_only=True):
    type: Literal["text", "json_object"] = "text"


class ResponseSchemaFormat(Answer, kw_only=True):
    type: Literal["json_schema"] = "json_schema"
    name: str
    definition: dict[str, Any] = field(name="schema")
    description: str | None
    strict: bool


class ResponseChosenFunction(Answer, kw_only=True):
    type: Literal["function", "custom"]
    name: str


class ResponseText(Answer, kw_only=True):
    format: Annotated[ResponsePlainFormat | ResponseSchemaFormat, Field(discriminator="type")]
    verbosity: str


class ResponseReasoning(Answer):
    effort: str | None = None
    summary: str | None = None


FailureCode = Literal["server_error", "invalid_prompt"]


class ResponseFailure(Answer, kw_only=True):
    code: FailureCode
    message: str


class IncompleteDetails(Answer, kw_only=True):
    reason: Literal["max_output_tokens"]


class ResponseFunction(Answer, kw_only=True):
    type: Literal["function"] = "function"
    strict: bool = False
    description: str | None = None
    parameters: dict[str, Any] | None = None
    name: str


class ResponseCustomTool(Answer, kw_only=True):
    type: Literal["custom"] = "custom"
    name: str
    description: str | UnsetType = UNSET
    format: dict[str, str] | UnsetType = UNSET


class ResponseNamespace(Answer, kw_only=True):
    type: Literal["namespace"] = "namespace"
    name: str
    description: str | UnsetType = UNSET
    tools: list[dict[str, Any]]


OutputItem = OutputReasoning | OutputMessage | OutputCall | OutputCustomCall
ShownTool = ResponseFunction | ResponseCustomTool | ResponseNamespace


class ResponseAnswer(Answer, kw_only=True):
    """Answer of POST /v1/responses; every key is always there."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseState = "in_progress"
    incomplete_details: IncompleteDetails | None = None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[OutputItem] = field(default_factory=list)
    error: ResponseFailure | None = None
    tools: list[ShownTool]
    tool_choice: Literal["none", "auto", "required"] | ResponseChosenFunction
    truncation: Literal["disabled"] = "disabled"
    parallel_tool_calls: bool
    text: ResponseText
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: ResponseReasoning
    user: str | None
    usage: ResponseUsage | None = None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: Literal["default"] = "default"
    metadata: dict[str, str]
    safety_identifier: str | None
    prompt_cache_key: str | None


class ResponseEvent(Answer):
    """One event of the stream; the other fields depend on `type`, which is also the name of the event."""

    type: str
    response: ResponseAnswer | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item: OutputItem | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: OutputText | OutputThought | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    logprobs: list[TokenLogprobEntry] | UnsetType = UNSET
    sequence_number: int = 0


class DeletedResponse(Answer, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Answer, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class ResponseItems(Answer, kw_only=True):
    """A page of what a response answered; the items have the shape of input and output items."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
