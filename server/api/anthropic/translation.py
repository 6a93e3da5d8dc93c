"""A body of /v1/messages as the chat route's, and its turns as a chat template reads them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from server.api.anthropic import request as given
from server.api.anthropic.message import thoughts_of
from server.generation.chat_request import ChatRequest, JsonSchemaFormat, NamedToolChoice, Tool, ToolChoice
from server.generation.chat_template import PART_SEPARATOR, image_part
from server.http.errors import NO_THREADS, echo, refuse


def check_fields(body: given.MessagesRequest) -> None:
    """Raise Refusal for a conversation that the server should hold, and when thinking may take all tokens there are."""
    if body.thread is not None:
        raise refuse("'thread' is not supported: send the whole conversation.", "thread", NO_THREADS)
    if isinstance(body.thinking, given.ThinkingOn) and body.thinking.budget_tokens >= body.max_tokens:
        message = f"'max_tokens' ({body.max_tokens}) must be above 'thinking.budget_tokens'."
        raise refuse(message, "max_tokens", "invalid_value")


def offered_tools(body: given.ConversationBody) -> list[given.DeclaredTool]:
    """The tools as the conversation ends; later ones are last, so that the prompt up to them is the one before.
    Refusal when two of `tools` have one name."""
    tools = body.tools or []
    declared = {tool.name: tool for tool in tools}
    for number, tool in enumerate(tools):
        if declared[tool.name] is not tool:
            raise refuse(f"Two tools are named {echo(tool.name)}.", f"tools[{number}].name", "invalid_value")
    offered = {tool.name: tool for tool in tools if not tool.defer_loading}
    for change in _changes(body):
        match change:
            case given.ToolRemoval(tool=tool_by_name):
                offered.pop(tool_by_name.name, None)
            case given.ToolAddition(tool=given.ToolDefinition(definition=defined)):
                declared[defined.name] = offered[defined.name] = defined
            case given.ToolAddition(tool=given.ToolByName(name=name)) | given.ToolReference(tool_name=name):
                if name in declared:
                    offered.setdefault(name, declared[name])
    return list(offered.values())


def _changes(body: given.ConversationBody) -> Iterator[given.ToolReference | given.ToolAddition | given.ToolRemoval]:
    for turn in body.messages:
        for block in () if isinstance(turn.content, str) else turn.content:
            if isinstance(block, given.ToolAddition | given.ToolRemoval):
                yield block
            elif isinstance(block, given.ToolResultBlock) and isinstance(block.content, list):
                yield from (part for part in block.content if isinstance(part, given.ToolReference))


def thinking_options(body: given.ConversationBody) -> dict[str, Any]:
    """Options of the chat template. Without `thinking` the model is told not to think, as these callers expect."""
    thinks = body.thinking is not None and not isinstance(body.thinking, given.ThinkingOff)
    options: dict[str, Any] = {"enable_thinking": thinks, "thinking": thinks}
    effort = body.output_config.effort if body.output_config is not None else None
    if thinks and effort is not None:
        options["reasoning_effort"] = "xhigh" if effort == "max" else effort
    return options


def shows_thoughts(body: given.MessagesRequest) -> bool:
    """False when the request wants thoughts left out; they then travel in the signature."""
    thinking = body.thinking
    return thinking is None or isinstance(thinking, given.ThinkingOff) or thinking.display != "omitted"


# Fields that the chat route's checks name, and what they are called here.
FIELD_ALIASES = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
    "tool_choice.function.name": "tool_choice.name",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
}


def own_name(param: str) -> str:
    return FIELD_ALIASES.get(param, param)


def conversation_chat(body: given.ConversationBody) -> ChatRequest:
    """What makes the prompt, but for the messages: the tools and which of them may be called."""
    offered, choice, parallel = offered_tools(body), body.tool_choice, None
    tools = [Tool.of(tool.name, tool.description, tool.input_schema, tool.strict) for tool in offered]
    if tools and choice is not None and not isinstance(choice, given.NoChoice):
        parallel = not choice.disable_parallel_tool_use
    return ChatRequest.model_construct(
        model=body.model,
        messages=[],
        tools=tools,
        tool_choice=_tool_choice(body, has_tools=bool(tools)),
        parallel_tool_calls=parallel,
    )


def message_chat(body: given.MessagesRequest) -> ChatRequest:
    """All fields, validated already, under the chat route's names; the messages are rendered from the body itself."""
    schema = body.output_config.format if body.output_config is not None else None
    generation = {
        "stream": body.stream,
        "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "response_format": None if schema is None else JsonSchemaFormat.of(schema.definition, True),
        "thinking_token_budget": body.thinking.budget_tokens if isinstance(body.thinking, given.ThinkingOn) else None,
    }
    return conversation_chat(body).model_copy(update=generation)


def _tool_choice(body: given.ConversationBody, has_tools: bool) -> ToolChoice | None:
    """Choices that force nothing are harmless without tools; the others are refused with the chat route's words."""
    match body.tool_choice:
        case given.AnyChoice():
            return "required"
        case given.OneChoice(name=name):
            return NamedToolChoice.of(name)
        case given.AutoChoice(type=kind) | given.NoChoice(type=kind) if has_tools:
            return kind
    return None


# A note to Anthropic's accounting, different with each request: shown to the model it would spoil every cached prefix.
BILLING_NOTE = "x-anthropic-billing-header:"


def template_turns(body: given.ConversationBody) -> list[dict[str, Any]]:
    """One dictionary per turn and per result of a call; turns of one role in a row are one.
    An instruction in the middle is part of the user's turn, as most chat templates know none there. Raises Refusal
    when the last turn is the assistant's, as answers are not continued, or has nothing in it."""
    last = body.messages[-1]
    if isinstance(last, given.UserTurn) and not isinstance(last.content, str) and not last.content:
        field = f"messages[{len(body.messages) - 1}].content"
        raise refuse(f"'{field}' is empty: the last turn needs a block of text or a tool's result.", field)
    if isinstance(last, given.AssistantTurn):
        message = "'messages' must end with a turn of the user: an assistant's turn is not continued."
        raise refuse(message, "messages", "unsupported_value")
    messages: list[dict[str, Any]] = []
    instructions = [] if body.system is None else _texts(body.system)
    users = (number for number, turn in enumerate(body.messages) if isinstance(turn, given.UserTurn))
    last_user = max(users, default=0)
    for number, turn in enumerate(body.messages):
        if isinstance(turn, given.SystemTurn):
            is_over = turn.clear_at == "next_user_message" and number < last_user
            text = "" if is_over else PART_SEPARATOR.join(_texts(turn.content))
            if text and messages:
                _say(messages, f"<system-reminder>\n{text}\n</system-reminder>")
            elif text:
                instructions.append(text)
        elif isinstance(turn, given.UserTurn):
            _add_user(messages, turn, f"messages[{number}].content")
        else:
            _add_assistant(messages, turn)
    system = PART_SEPARATOR.join(text for text in instructions if not text.startswith(BILLING_NOTE))
    return [{"role": "system", "content": system}, *messages] if system else messages


def _texts(content: str | Sequence[given.SystemBlock]) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.text for block in content if isinstance(block, given.TextBlock)]


def _say(messages: list[dict[str, Any]], text: str) -> None:
    last = messages[-1] if messages and messages[-1]["role"] == "user" else None
    if last is None:
        messages.append({"role": "user", "content": text})
    elif isinstance(last["content"], str):
        last["content"] += PART_SEPARATOR + text
    else:
        last["content"].append({"type": "text", "text": text})


def _show(messages: list[dict[str, Any]], image: dict[str, Any]) -> None:
    if not messages or messages[-1]["role"] != "user":
        messages.append({"role": "user", "content": []})
    last = messages[-1]
    if isinstance(last["content"], str):
        last["content"] = [{"type": "text", "text": last["content"]}]
    last["content"].append(image)


def _add_user(messages: list[dict[str, Any]], turn: given.UserTurn, path: str) -> None:
    if isinstance(turn.content, str):
        _say(messages, turn.content)
        return
    for index, block in enumerate(turn.content):
        if isinstance(block, given.TextBlock):
            _say(messages, block.text)
        elif isinstance(block, given.ImageBlock):
            _show(messages, image_part(_url(block.source), f"{path}[{index}].source"))
        else:
            messages.append({"role": "tool", "content": _result(block), "tool_call_id": block.tool_use_id})


def _url(source: given.ImageSource | given.ImageAddress) -> str:
    if isinstance(source, given.ImageAddress):
        return source.url
    return f"data:{source.media_type};base64,{source.data}"


def _result(block: given.ToolResultBlock) -> str:
    content = block.content or ""
    if not isinstance(content, str):
        parts = (part.text if isinstance(part, given.TextBlock) else f"Loaded: {part.tool_name}" for part in content)
        content = PART_SEPARATOR.join(parts)
    return f"Error: {content}" if block.is_error else content


def _add_assistant(messages: list[dict[str, Any]], turn: given.AssistantTurn) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    last = messages[-1]
    for block in [given.TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content:
        if isinstance(block, given.TextBlock):
            last["content"] += (PART_SEPARATOR if last["content"] else "") + block.text
        elif isinstance(block, given.ThinkingBlock):
            thoughts = thoughts_of(block.thinking, block.signature)
            last["reasoning_content"] = last.get("reasoning_content", "") + thoughts
        else:
            function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
            last.setdefault("tool_calls", []).append({"id": block.id, "type": "function", "function": function})
