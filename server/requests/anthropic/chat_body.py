"""A body of /v1/messages as the chat route's: same fields, other names."""

from types import MappingProxyType

from server.protocol.anthropic.request import ConversationBody, MessagesRequest, OutputSchema, ThinkingOn
from server.protocol.anthropic.tools import AutoChoice, DeclaredTool, NoChoice, OneChoice
from server.protocol.chat_request import ChatRequest, ChosenFunction, FunctionTool, NamedToolChoice, Tool, ToolChoice
from server.protocol.structured_outputs import JsonSchemaFormat, NamedSchema
from server.requests.anthropic.offered_tools import offered_tools

# Fields that the chat route's checks name, and what they are called here.
OWN_NAMES = MappingProxyType(
    {
        "max_completion_tokens": "max_tokens",
        "stop": "stop_sequences",
        "thinking_token_budget": "thinking",
        "response_format": "output_config.format",
        "response_format.json_schema.schema": "output_config.format.schema",
        "tool_choice.function.name": "tool_choice.name",
        "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    }
)


def own_name(param: str) -> str:
    """What a field of the chat route is called here."""
    return OWN_NAMES.get(param, param)


def conversation_chat(body: ConversationBody) -> ChatRequest:
    """What makes the prompt, but for the messages: the tools and which of them may be called."""
    tools = [_tool(tool) for tool in offered_tools(body)]
    return ChatRequest.model_construct(
        model=body.model,
        messages=[],
        tools=tools,
        tool_choice=_tool_choice(body, has_tools=bool(tools)),
        parallel_tool_calls=_parallel(body) if tools else None,
    )


def message_chat(body: MessagesRequest) -> ChatRequest:
    """All fields, validated already, under the chat route's names; the messages are rendered from the body itself."""
    schema = body.output_config.format if body.output_config is not None else None
    generation = {
        "stream": body.stream,
        "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "response_format": None if schema is None else _response_format(schema),
        "thinking_token_budget": body.thinking.budget_tokens if isinstance(body.thinking, ThinkingOn) else None,
    }
    return conversation_chat(body).model_copy(update=generation)


def _tool(tool: DeclaredTool) -> Tool:
    function = FunctionTool.model_construct(
        name=tool.name, description=tool.description, parameters=tool.input_schema, strict=tool.strict
    )
    return Tool.model_construct(type="function", function=function)


def _tool_choice(body: ConversationBody, has_tools: bool) -> ToolChoice | None:
    """Choices that force nothing are harmless without tools; the others are refused with the chat route's words."""
    match body.tool_choice:
        case None:
            return None
        case AutoChoice():
            return "auto" if has_tools else None
        case NoChoice():
            return "none" if has_tools else None
        case OneChoice(name=name):
            return NamedToolChoice(type="function", function=ChosenFunction(name=name))
    return "required"


def _parallel(body: ConversationBody) -> bool | None:
    choice = body.tool_choice
    return None if choice is None or isinstance(choice, NoChoice) else not choice.disable_parallel_tool_use


def _response_format(schema: OutputSchema) -> JsonSchemaFormat:
    named = NamedSchema.model_construct(name="output", definition=schema.definition, strict=True)
    return JsonSchemaFormat.model_construct(type="json_schema", json_schema=named)
