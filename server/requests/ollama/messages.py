"""Messages of /api/chat and prompts of /api/generate -> the dictionaries a chat template reads."""

from collections.abc import Sequence
from typing import Any

from engine.text.facts import TextFacts
from server.http.errors import Refusal, refuse
from server.protocol.ollama.requests import OllamaGenerateRequest, OllamaMessage, OllamaToolCall


def template_turns(messages: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """One dictionary per message; raises Refusal naming the message at fault.

    Ollama's calls may be without ids, which some templates need: then a result belongs to the first call of its
    tool, or of any tool, that has none yet.
    """
    turns: list[dict[str, Any]] = []
    waiting: list[tuple[str, str]] = []  # id and tool of the calls without a result
    for number, message in enumerate(messages):
        if message.images:
            raise no_images(f"messages[{number}].images")
        turn: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking and message.role == "assistant":
            turn["reasoning_content"] = message.thinking
        if message.tool_calls:
            turn["tool_calls"] = [_call(call, number, place) for place, call in enumerate(message.tool_calls)]
            waiting += [(call["id"], call["function"]["name"]) for call in turn["tool_calls"]]
        if message.role == "tool":
            turn |= _result_of(message, waiting)
        elif message.name is not None:
            turn["name"] = message.name
        turns.append(turn)
    return turns


def check_prompt(body: OllamaGenerateRequest, text: TextFacts) -> bool:
    """Whether the prompt goes to the model as it is; raises Refusal naming a field that is not honoured."""
    if body.images:
        raise no_images("images")
    is_raw = bool(body.raw) or text.chat_template is None
    if is_raw and body.system:
        why = "with 'raw'" if body.raw else "by a model without a chat template"
        raise refuse(f"'system' is not supported {why}.", "system", "unsupported_parameter")
    return is_raw


def prompt_turns(body: OllamaGenerateRequest) -> list[dict[str, Any]]:
    """A prompt as what a user said, behind the system's words if there are any."""
    system = [{"role": "system", "content": body.system}] if body.system else []
    return [*system, {"role": "user", "content": body.prompt or ""}]


def no_images(param: str) -> Refusal:
    """The refusal of pictures."""
    return refuse(f"Unsupported parameter: '{param}': this server reads text only.", param, "unsupported_parameter")


def _call(call: OllamaToolCall, message: int, place: int) -> dict[str, Any]:
    """An id that was left out has nine letters and digits, the form that Mistral's templates insist on."""
    function = {"name": call.function.name, "arguments": call.function.arguments}
    return {"id": call.id or f"c{message:05}{place:03}", "type": "function", "function": function}


def _result_of(message: OllamaMessage, waiting: list[tuple[str, str]]) -> dict[str, Any]:
    """Whose result a tool's message is; that call waits no longer."""
    tool = message.tool_name or message.name
    found = next(
        (
            (identity, name)
            for identity, name in waiting
            if (message.tool_call_id or identity) == identity and (tool or name) == name
        ),
        None,
    )
    if found is not None:
        waiting.remove(found)
    identity = message.tool_call_id or (found[0] if found else None)
    name = tool or (found[1] if found else None)
    return {key: text for key, text in (("tool_call_id", identity), ("name", name)) if text is not None}
