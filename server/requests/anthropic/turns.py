"""Anthropic's turns as the dictionaries a chat template reads."""

from collections.abc import Sequence
from typing import Any

import msgspec

from server.http.errors import refuse
from server.protocol.anthropic.blocks import (
    AssistantTurn,
    SystemBlock,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from server.protocol.anthropic.request import ConversationBody
from server.protocol.anthropic.signatures import thoughts_of
from server.requests.messages import PART_SEPARATOR

# A note to Anthropic's accounting, different with each request: shown to the model it would spoil every cached prefix.
BILLING_NOTE = "x-anthropic-billing-header:"


def template_turns(body: ConversationBody) -> list[dict[str, Any]]:
    """One dictionary per turn and per result of a call; turns of one role in a row are one.

    An instruction in the middle is part of the user's turn, as most chat templates know none there. Raises Refusal
    when the last turn is the assistant's, as answers are not continued, or has nothing in it.
    """
    last = body.messages[-1]
    if isinstance(last, UserTurn) and not isinstance(last.content, str) and not last.content:
        field = f"messages[{len(body.messages) - 1}].content"
        raise refuse(f"'{field}' is empty: the last turn needs a block of text or a tool's result.", field)
    if isinstance(last, AssistantTurn):
        message = "'messages' must end with a turn of the user: an assistant's turn is not continued."
        raise refuse(message, "messages", "unsupported_value")
    messages: list[dict[str, Any]] = []
    instructions = [] if body.system is None else _texts(body.system)
    last_user = max((number for number, turn in enumerate(body.messages) if isinstance(turn, UserTurn)), default=0)
    for number, turn in enumerate(body.messages):
        if isinstance(turn, SystemTurn):
            is_over = turn.clear_at == "next_user_message" and number < last_user
            text = "" if is_over else PART_SEPARATOR.join(_texts(turn.content))
            if text and messages:
                _say(messages, f"<system-reminder>\n{text}\n</system-reminder>")
            elif text:
                instructions.append(text)
        elif isinstance(turn, UserTurn):
            _add_user(messages, turn)
        else:
            _add_assistant(messages, turn)
    system = PART_SEPARATOR.join(text for text in instructions if not text.startswith(BILLING_NOTE))
    return [{"role": "system", "content": system}, *messages] if system else messages


def _texts(content: str | Sequence[SystemBlock]) -> list[str]:
    return [content] if isinstance(content, str) else [block.text for block in content if isinstance(block, TextBlock)]


def _say(messages: list[dict[str, Any]], text: str) -> None:
    """Add to what the user said last, or begin a turn."""
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"] += PART_SEPARATOR + text
    else:
        messages.append({"role": "user", "content": text})


def _add_user(messages: list[dict[str, Any]], turn: UserTurn) -> None:
    if isinstance(turn.content, str):
        _say(messages, turn.content)
        return
    for block in turn.content:
        if isinstance(block, TextBlock):
            _say(messages, block.text)
        else:
            messages.append({"role": "tool", "content": _result(block), "tool_call_id": block.tool_use_id})


def _result(block: ToolResultBlock) -> str:
    content = block.content or ""
    if not isinstance(content, str):
        parts = (part.text if isinstance(part, TextBlock) else f"Loaded: {part.tool_name}" for part in content)
        content = PART_SEPARATOR.join(parts)
    return f"Error: {content}" if block.is_error else content


def _add_assistant(messages: list[dict[str, Any]], turn: AssistantTurn) -> None:
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    last = messages[-1]
    for block in [TextBlock(type="text", text=turn.content)] if isinstance(turn.content, str) else turn.content:
        if isinstance(block, TextBlock):
            last["content"] += (PART_SEPARATOR if last["content"] else "") + block.text
        elif isinstance(block, ThinkingBlock):
            thoughts = thoughts_of(block.thinking, block.signature)
            last["reasoning_content"] = last.get("reasoning_content", "") + thoughts
        else:
            last.setdefault("tool_calls", []).append(_call(block))


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": msgspec.json.encode(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}
