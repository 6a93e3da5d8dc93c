"""OpenAI messages -> the dictionaries a chat template reads."""

from collections.abc import Sequence
from typing import Any

from server.http.errors import refuse
from server.protocol.chat_request import AssistantMessage, Message, TextPart, ToolMessage

PART_SEPARATOR = "\n"


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """One dictionary per message; raises Refusal naming the message at fault.

    `developer` becomes `system` and text parts are joined by a line break.
    """
    return [_template_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _template_message(message: Message, path: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": joined_text(message.content)}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, ToolMessage):
        return plain | {"tool_call_id": message.tool_call_id}
    if isinstance(message, AssistantMessage):
        if message.content is None and not message.tool_calls:
            param = f"{path}.content"
            raise refuse(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        if message.reasoning_content is not None:
            plain["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            plain["tool_calls"] = [
                call.model_dump(exclude={"index": True, "function": {"parsed_arguments"}})
                for call in message.tool_calls
            ]
    return plain


def joined_text(content: str | Sequence[TextPart] | None) -> str:
    """A content's text; its parts are joined by a line break."""
    if content is None:
        return ""
    return content if isinstance(content, str) else PART_SEPARATOR.join(part.text for part in content)
