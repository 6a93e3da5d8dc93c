"""What the chat template is told about thinking, and how much of it an answer may show."""

from typing import Any

from server.http.errors import refuse
from server.protocol.anthropic.request import ConversationBody, MessagesRequest, ThinkingOff, ThinkingOn


def thinking_options(body: ConversationBody) -> dict[str, Any]:
    """Options of the chat template. Without `thinking` the model is told not to think, as these callers expect."""
    thinks = body.thinking is not None and not isinstance(body.thinking, ThinkingOff)
    options: dict[str, Any] = {"enable_thinking": thinks, "thinking": thinks}
    effort = body.output_config.effort if body.output_config is not None else None
    if thinks and effort is not None:
        options["reasoning_effort"] = "xhigh" if effort == "max" else effort
    return options


def check_budget(body: MessagesRequest) -> None:
    """Raise Refusal when thinking may take all that may be generated."""
    if isinstance(body.thinking, ThinkingOn) and body.thinking.budget_tokens >= body.max_tokens:
        message = f"'max_tokens' ({body.max_tokens}) must be above 'thinking.budget_tokens'."
        raise refuse(message, "max_tokens", "invalid_value")


def shows_thoughts(body: MessagesRequest) -> bool:
    """False when the request wants thoughts left out; they then travel in the signature."""
    thinking = body.thinking
    return thinking is None or isinstance(thinking, ThinkingOff) or thinking.display != "omitted"
