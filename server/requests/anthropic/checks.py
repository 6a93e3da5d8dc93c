"""Rules between the fields of a body of /v1/messages."""

from server.http.error_formats import NO_THREADS
from server.http.errors import refuse
from server.protocol.anthropic.request import MessagesRequest, ThinkingOn


def check_fields(body: MessagesRequest) -> None:
    """Raise Refusal for a conversation that the server should hold, and when thinking may take all tokens there are."""
    if body.thread is not None:
        raise refuse("'thread' is not supported: send the whole conversation.", "thread", NO_THREADS)
    if isinstance(body.thinking, ThinkingOn) and body.thinking.budget_tokens >= body.max_tokens:
        message = f"'max_tokens' ({body.max_tokens}) must be above 'thinking.budget_tokens'."
        raise refuse(message, "max_tokens", "invalid_value")
