"""Tools of a chat, as the chat template reads them."""

from typing import Any

from engine.bundle.answer_format import AnswerFormat
from server.http.errors import refuse
from server.protocol.chat_request import ChatRequest


def chat_tools(body: ChatRequest, answer: AnswerFormat) -> list[dict[str, Any]] | None:
    """The tools the chat template shows the model, None for none; raises Refusal naming the field.

    answer: how the model writes; without calls, it takes no tools.
    """
    if not body.tools:
        for field in ("tool_choice", "parallel_tool_calls"):
            if getattr(body, field) is not None:
                raise refuse(f"'{field}' is only allowed when 'tools' are given.", field, "invalid_value")
        return None
    if answer.calls is None:
        message = "Unsupported parameter: 'tools' is not supported by this model's chat template."
        raise refuse(message, "tools", "unsupported_parameter")
    if body.tool_choice == "none":
        return None
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in body.tools]
