"""What the chat template is told about thinking, and how much of it an answer may show."""

from typing import Any

from server.protocol.anthropic.request import ConversationBody, MessagesRequest, ThinkingOff


def thinking_options(body: ConversationBody) -> dict[str, Any]:
    """Options of the chat template. Without `thinking` the model is told not to think, as these callers expect."""
    thinks = body.thinking is not None and not isinstance(body.thinking, ThinkingOff)
    options: dict[str, Any] = {"enable_thinking": thinks, "thinking": thinks}
    effort = body.output_config.effort if body.output_config is not None else None
    if thinks and effort is not None:
        options["reasoning_effort"] = "xhigh" if effort == "max" else effort
    return options


def shows_thoughts(body: MessagesRequest) -> bool:
    """False when the request wants thoughts left out; they then travel in the signature."""
    thinking = body.thinking
    return thinking is None or isinstance(thinking, ThinkingOff) or thinking.display != "omitted"
