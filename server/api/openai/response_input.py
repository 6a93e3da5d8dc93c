"""Input items and tools of /v1/responses -> what the chat route's functions take."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from server.api.openai.response_request import (
    CalledAs,
    CustomCallItem,
    CustomOutputItem,
    CustomTool,
    FunctionCallItem,
    FunctionOutputItem,
    GrammarInput,
    InputItem,
    InputMessage,
    InputText,
    NamedFunction,
    NamespaceTool,
    ReasoningItem,
    ResponseFunctionTool,
    ResponsesRequest,
    TextSchemaFormat,
    TextSettings,
)
from server.generation.chat_request import (
    ChatRequest,
    JsonSchemaFormat,
    NamedToolChoice,
    ResponseFormat,
    Tool,
    ToolChoice,
)
from server.generation.chat_template import PART_SEPARATOR, image_part, template_options
from server.http.errors import refuse
from server.http.fields import MAX_TOOLS

INPUT = "input"  # the only argument of the function that a custom tool is shown as


def shown_tools(body: ResponsesRequest) -> list[Tool]:
    """Every tool as a function; Refusal when there are too many in all namespaces together."""
    found = [_function(who, tool, about) for who, tool, about in _all(body)]
    if len(found) > MAX_TOOLS:
        message = f"Invalid 'tools': {len(found)} tools in all namespaces. At most {MAX_TOOLS} are allowed."
        raise refuse(message, "tools", "array_above_max_length")
    return found


def tool_identities(body: ResponsesRequest) -> Mapping[str, CalledAs]:
    """Tools by the name that the model calls them by."""
    return {who.shown: who for who, _, _ in _all(body)}


def custom_arguments(text: str) -> str:
    """The arguments of the function that a custom tool is shown as."""
    return msgspec.json.encode({INPUT: text}).decode()


def _all(body: ResponsesRequest) -> Iterator[tuple[CalledAs, ResponseFunctionTool | CustomTool, str | None]]:
    for tool in body.tools or []:
        if isinstance(tool, NamespaceTool):
            for inner in tool.tools:
                yield CalledAs(inner.name, tool.name, isinstance(inner, CustomTool)), inner, tool.description
        else:
            yield CalledAs(tool.name, None, isinstance(tool, CustomTool)), tool, None


def _function(who: CalledAs, tool: ResponseFunctionTool | CustomTool, about: str | None) -> Tool:
    """about: what the tools of its namespace are for."""
    told = "\n\n".join(text for text in (about, tool.description, _grammar(tool)) if text)
    if isinstance(tool, CustomTool):
        return Tool.of(who.shown, told, _input_schema(tool), True)
    return Tool.of(who.shown, told if about else tool.description, tool.parameters, tool.strict)


def _input_schema(tool: CustomTool) -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    if isinstance(tool.format, GrammarInput) and tool.format.syntax == "regex":
        text["pattern"] = f"^(?:{tool.format.definition})$"
    return {"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _grammar(tool: ResponseFunctionTool | CustomTool) -> str | None:
    """Inside a JSON string no grammar can be enforced, so the model is told."""
    if isinstance(tool, CustomTool) and isinstance(tool.format, GrammarInput) and tool.format.syntax == "lark":
        return f"The input has the form of this Lark grammar:\n{tool.format.definition}"
    return None


LOGPROBS = "message.output_text.logprobs"
# Fields that the chat route's checks name, and what they are called here.
FIELD_ALIASES = MappingProxyType(
    {
        "messages": "input",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text.format",
        "response_format.json_schema.schema": "text.format.schema",
        "tool_choice.function.name": "tool_choice.name",
    }
)


def as_chat(body: ResponsesRequest) -> ChatRequest:
    """The fields both routes have, under the chat route's names; they were validated already."""
    wants_logprobs = body.top_logprobs is not None or LOGPROBS in (body.include or [])
    tools = shown_tools(body)
    return ChatRequest.model_construct(
        **body.sampling,
        messages=[],
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs,
        top_logprobs=body.top_logprobs,
        tools=tools,
        # SDKs send "auto" without tools.
        tool_choice=_tool_choice(body) if tools or body.tool_choice not in ("auto", "none") else None,
        parallel_tool_calls=body.parallel_tool_calls if tools else None,
        thinking_token_budget=body.thinking_token_budget,
        response_format=_response_format(body.text),
    )


def response_options(body: ResponsesRequest) -> dict[str, Any]:
    """Options for the chat template; a verbosity changes something where the template reads it."""
    verbosity = body.text.verbosity if body.text is not None else None
    told = {} if verbosity is None else {"verbosity": verbosity}
    return told | template_options(body.chat_template_kwargs, body.reasoning.effort if body.reasoning else None)


def own_name(param: str) -> str:
    """What a field of the chat route is called in this one."""
    return FIELD_ALIASES.get(param, "input" if param.startswith("messages[") else param)


def _tool_choice(body: ResponsesRequest) -> ToolChoice | None:
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        return NamedToolChoice.of(choice.name)
    return choice


def _response_format(text: TextSettings | None) -> ResponseFormat | None:
    form = text.format if text is not None else None
    if isinstance(form, TextSchemaFormat):
        return JsonSchemaFormat.of(form.definition, form.strict)
    return form


def given_items(body: ResponsesRequest) -> list[InputItem]:
    return [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else list(body.input)


def template_items(instructions: str | None, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """One dictionary per message, as a chat template reads it.

    What the model thought and called between two other messages is one message of the assistant.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for number, item in enumerate(items):
        if isinstance(item, FunctionOutputItem | CustomOutputItem):
            messages.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, InputMessage) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _content(item, f"input[{number}].content")})
        else:
            _add_to_assistant(messages, item)
    return messages


def _add_to_assistant(
    messages: list[dict[str, Any]], item: InputMessage | FunctionCallItem | CustomCallItem | ReasoningItem
) -> None:
    last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
    has_spoken = last is not None and (last["content"] or "tool_calls" in last)
    if last is None or (isinstance(item, InputMessage | ReasoningItem) and has_spoken):
        last = {"role": "assistant", "content": ""}
        messages.append(last)
    if isinstance(item, InputMessage):
        last["content"] = _content(item, "input")
    elif isinstance(item, ReasoningItem):
        thoughts = item.content or item.summary
        last["reasoning_content"] = last.get("reasoning_content", "") + "".join(part.text for part in thoughts)
    else:
        arguments = custom_arguments(item.input) if isinstance(item, CustomCallItem) else item.arguments
        call = {"name": CalledAs(item.name, item.namespace).shown, "arguments": arguments}
        last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": call})


def _content(item: InputMessage, path: str) -> str | list[dict[str, Any]]:
    """Text, or the parts in order where a user shows images. Refusal of those that somebody else shows."""
    if isinstance(item.content, str):
        return item.content
    texts = [part for part in item.content if isinstance(part, InputText)]
    if len(texts) == len(item.content):
        return _text(texts)
    if item.role != "user":
        raise refuse(f"'{path}' has an image: only a user's message may.", path, "unsupported_value")
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, InputText)
        else image_part(part.image_url, f"{path}[{index}].image_url", part.detail)
        for index, part in enumerate(item.content)
    ]


def _text(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else PART_SEPARATOR.join(part.text for part in content)
