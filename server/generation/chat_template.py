"""Messages, tools and options as a chat template reads them, and whether the rendered prompt lets the model reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.bundle.answer_format import AnswerFormat, Markers
from engine.client.engine import Engine
from engine.request import ThinkingBudget
from server.generation import chat_request as given
from server.generation.chat_request import ChatRequest, ImagePart, Message, TextPart, Tool
from server.http.errors import refuse

PART_SEPARATOR = "\n"


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """One dictionary per message; raises Refusal naming the message at fault."""
    return [_template_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _template_message(message: Message, path: str) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    plain: dict[str, Any] = {"role": role, "content": _content(message.content, f"{path}.content")}
    if message.name is not None:
        plain["name"] = message.name
    if isinstance(message, given.ToolMessage):
        return plain | {"tool_call_id": message.tool_call_id}
    if isinstance(message, given.AssistantMessage):
        if message.content is None and not message.tool_calls:
            param = f"{path}.content"
            raise refuse(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
        if message.reasoning_content is not None:
            plain["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            hidden: dict[str, Any] = {"index": True, "function": {"parsed_arguments"}}
            plain["tool_calls"] = [call.model_dump(exclude=hidden) for call in message.tool_calls]
    return plain


def image_part(url: str, param: str, detail: str | None = None) -> dict[str, Any]:
    """An image as `Engine.chat_prompt` takes it. param: the field that it came in."""
    return {"type": "image", "url": url, "detail": detail, "param": param}


def check_no_images(messages: Sequence[Mapping[str, Any]]) -> None:
    """Refusal naming the first part that is an image, for a model that reads text only."""
    for message in messages:
        for part in message["content"] if isinstance(message["content"], list) else ():
            if part["type"] == "image":
                param = part["param"].replace(".image_url", ".type")
                raise refuse(f"Unsupported image at '{param}': this model reads text only.", param, "unsupported_value")


def _content(content: str | Sequence[TextPart | ImagePart] | None, path: str) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part for part in content if isinstance(part, TextPart)]
    if len(texts) == len(content):
        return joined_text(texts)
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextPart)
        else image_part(part.image_url.url, f"{path}[{index}].image_url", part.image_url.detail)
        for index, part in enumerate(content)
    ]


class _HasText(Protocol):
    text: str


def joined_text(content: str | Sequence[_HasText]) -> str:
    return content if isinstance(content, str) else PART_SEPARATOR.join(part.text for part in content)


def chat_tools(body: ChatRequest, answer: AnswerFormat) -> list[dict[str, Any]] | None:
    """The tools the chat template shows the model, None for none; raises Refusal naming the field.
    answer: how the model writes; without calls, it takes no tools."""
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
    return template_tools(body.tools)


def template_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As a chat template reads them; `strict` is not for the model."""
    return [tool.model_dump(exclude_none=True, exclude={"function": {"strict"}}) for tool in tools]


END_TOKENS = 32  # of a prompt: enough for a marker and the line break after it


def template_options(
    own: Mapping[str, Any] | None, effort: str | None, adds_prompt: bool | None = None
) -> dict[str, Any]:
    """Options for the chat template. An effort is on or off for templates that know no degrees."""
    options: dict[str, Any] = {}
    if effort is not None:
        thinks = effort != "none"
        options = {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}
    if adds_prompt is not None:
        options["add_generation_prompt"] = adds_prompt
    return options | dict(own or {})


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether the model reasons before it answers. `markers` open and close the block; None = it does not reason.
    is_open: the prompt has opened the block. is_over: it has closed it too, so that the answer comes at once.
    prefilled: what the prompt has written of the answer."""

    markers: Markers | None
    is_open: bool = False
    is_over: bool = False
    prefilled: str = ""


def thinking_after(prompt: Sequence[int], engine: Engine) -> Thinking:
    """How the model goes on after a prompt of these token ids."""
    answer = engine.info.manifest.text.writes
    end = b"".join(engine.token_pieces(prompt[-END_TOKENS:])).decode("utf-8", "replace")
    prefilled = answer.prefill if answer.prefill and end.endswith(answer.prefill) else ""
    markers = answer.reasoning
    if markers is None:
        return Thinking(None, prefilled=prefilled)
    return Thinking(markers, is_opened(end, markers), end.rstrip().endswith(markers.closing), prefilled)


def thinking_budget(tokens: int | None, thinking: Thinking, engine: Engine) -> ThinkingBudget | None:
    """The bound on reasoning of a request, None for no bound; raises Refusal for a model that does not reason."""
    budget = None if tokens is None else engine.thinking_budget(tokens, thinking.is_open)
    param = "thinking_token_budget"
    if tokens is not None and budget is None:
        raise refuse(f"'{param}' is not supported: this model does not reason.", param, "unsupported_parameter")
    return budget


def is_opened(prompt_end: str, markers: Markers) -> bool:
    """True when the end of a prompt has opened the reasoning and not closed it."""
    opening, closing = markers.opening, markers.closing
    start = prompt_end.rfind(opening)
    return start >= 0 and not prompt_end[start + len(opening) :].strip() and closing not in prompt_end[start:]
