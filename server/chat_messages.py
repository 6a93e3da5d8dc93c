"""OpenAI messages -> the dictionaries a chat template reads."""

from collections.abc import Sequence
from typing import Any

import msgspec

from server.errors import refuse
from server.wire import AssistantMessage, Message, TextPart, ToolCall, ToolMessage

PART_SEPARATOR = "\n"


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """One dictionary per message; raises Refusal naming the message at fault.

    `developer` becomes `system`, text parts are joined by a line break, the arguments of a tool call are parsed
    (templates print them as an object).
    """
    return [_template_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _template_message(message: Message, path: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _text(message.content)}
    if isinstance(message, ToolMessage):
        return plain | {"tool_call_id": message.tool_call_id}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, AssistantMessage):
        if message.content is None and not message.tool_calls:
            param = f"{path}.content"
            raise refuse(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        if message.reasoning_content is not None:
            plain["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            plain["tool_calls"] = [
                _tool_call(call, f"{path}.tool_calls[{number}]") for number, call in enumerate(message.tool_calls)
            ]
    return plain


def _text(content: str | Sequence[TextPart] | None) -> str:
    if content is None:
        return ""
    return content if isinstance(content, str) else PART_SEPARATOR.join(part.text for part in content)


def _tool_call(call: ToolCall, path: str) -> dict[str, Any]:
    param = f"{path}.function.arguments"
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.MsgspecError, RecursionError):
        raise refuse(f"Invalid '{param}': not valid JSON.", param, "invalid_value") from None
    if not isinstance(arguments, dict):
        raise refuse(f"Invalid '{param}': not a JSON object.", param, "invalid_value")
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
