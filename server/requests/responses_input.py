"""Input items of /v1/responses -> what the chat route's functions take."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from server.protocol.chat_request import ChatRequest, ChosenFunction, NamedToolChoice, ToolChoice
from server.protocol.responses_request import (
    CustomCallItem,
    CustomOutputItem,
    FunctionCallItem,
    FunctionOutputItem,
    InputItem,
    InputMessage,
    InputText,
    ReasoningItem,
    ResponsesRequest,
    TextSchemaFormat,
    TextSettings,
)
from server.protocol.responses_tools import CalledAs, NamedFunction
from server.protocol.structured_outputs import JsonSchemaFormat, NamedSchema, ResponseFormat
from server.requests.chat_template_options import template_options
from server.requests.messages import PART_SEPARATOR
from server.requests.responses_tools import custom_arguments, shown_tools

LOGPROBS = "message.output_text.logprobs"

# Fields that the chat route's checks name, and what they are called here.
OWN_NAMES = MappingProxyType(
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
        model=body.model,
        messages=[],
        max_completion_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logprobs=wants_logprobs,
        top_logprobs=body.top_logprobs,
        tools=tools,
        # SDKs send "auto" without tools.
        tool_choice=_tool_choice(body) if tools or body.tool_choice not in ("auto", "none") else None,
        parallel_tool_calls=body.parallel_tool_calls if tools else None,
        top_k=body.top_k,
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        priority=body.priority,
        thinking_token_budget=body.thinking_token_budget,
        denoising_steps=body.denoising_steps,
        unmasking_strategy=body.unmasking_strategy,
        confidence_threshold=body.confidence_threshold,
        entropy_bound=body.entropy_bound,
        response_format=_response_format(body.text),
    )


def response_options(body: ResponsesRequest) -> dict[str, Any]:
    """Options for the chat template; a verbosity changes something where the template reads it."""
    verbosity = body.text.verbosity if body.text is not None else None
    told = {} if verbosity is None else {"verbosity": verbosity}
    return told | template_options(body.chat_template_kwargs, body.reasoning.effort if body.reasoning else None)


def own_name(param: str) -> str:
    """What a field of the chat route is called in this one."""
    return OWN_NAMES.get(param, "input" if param.startswith("messages[") else param)


def _tool_choice(body: ResponsesRequest) -> ToolChoice | None:
    choice = body.tool_choice
    if isinstance(choice, NamedFunction):
        return NamedToolChoice(type="function", function=ChosenFunction(name=choice.name))
    return choice


def _response_format(text: TextSettings | None) -> ResponseFormat | None:
    form = text.format if text is not None else None
    if isinstance(form, TextSchemaFormat):
        named = NamedSchema.model_construct(name=form.name, definition=form.definition, strict=form.strict)
        return JsonSchemaFormat.model_construct(type="json_schema", json_schema=named)
    return form


def given_items(body: ResponsesRequest) -> list[InputItem]:
    """The items of the request itself."""
    return [InputMessage(role="user", content=body.input)] if isinstance(body.input, str) else list(body.input)


def template_items(instructions: str | None, items: Sequence[InputItem]) -> list[dict[str, Any]]:
    """One dictionary per message, as a chat template reads it.

    What the model thought and called between two other messages is one message of the assistant.
    """
    messages: list[dict[str, Any]] = []
    if instructions is not None:
        messages.append({"role": "system", "content": instructions})
    for item in items:
        if isinstance(item, FunctionOutputItem | CustomOutputItem):
            messages.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
        elif isinstance(item, InputMessage) and item.role != "assistant":
            role = "system" if item.role == "developer" else item.role
            messages.append({"role": role, "content": _text(item.content)})
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
        last["content"] = _text(item.content)
    elif isinstance(item, ReasoningItem):
        thoughts = item.content or item.summary
        last["reasoning_content"] = last.get("reasoning_content", "") + "".join(part.text for part in thoughts)
    else:
        arguments = custom_arguments(item.input) if isinstance(item, CustomCallItem) else item.arguments
        call = {"name": CalledAs(item.name, item.namespace).shown, "arguments": arguments}
        last.setdefault("tool_calls", []).append({"id": item.call_id, "type": "function", "function": call})


def _text(content: str | Sequence[InputText]) -> str:
    return content if isinstance(content, str) else PART_SEPARATOR.join(part.text for part in content)
