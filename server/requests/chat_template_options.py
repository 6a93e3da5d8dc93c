"""The options of the chat template, and whether a rendered prompt lets the model reason."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.bundle.answer_format import Markers
from engine.request import ThinkingBudget
from server.engine_seam import EngineLike
from server.http.errors import refuse

END_TOKENS = 32  # of a prompt: enough for a marker and the line break after it


def template_options(
    given: Mapping[str, Any] | None, effort: str | None, adds_prompt: bool | None = None
) -> dict[str, Any]:
    """Options for the chat template. An effort is on or off for templates that know no degrees."""
    options: dict[str, Any] = {}
    if effort is not None:
        thinks = effort != "none"
        options = {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}
    if adds_prompt is not None:
        options["add_generation_prompt"] = adds_prompt
    return options | dict(given or {})


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether the model reasons before it answers. `markers` open and close the block; None = it does not reason.

    is_open: the prompt has opened the block. is_over: it has closed it too, so that the answer comes at once.
    prefilled: what the prompt has written of the answer.
    """

    markers: Markers | None
    is_open: bool = False
    is_over: bool = False
    prefilled: str = ""


def thinking_after(prompt: Sequence[int], engine: EngineLike) -> Thinking:
    """How the model goes on after a prompt of these token ids."""
    answer = engine.info.manifest.text.writes
    end = b"".join(engine.token_pieces(prompt[-END_TOKENS:])).decode("utf-8", "replace")
    prefilled = answer.prefill if answer.prefill and end.endswith(answer.prefill) else ""
    markers = answer.reasoning
    if markers is None:
        return Thinking(None, prefilled=prefilled)
    return Thinking(markers, is_opened(end, markers), end.rstrip().endswith(markers.closing), prefilled)


def thinking_budget(tokens: int | None, thinking: Thinking, engine: EngineLike) -> ThinkingBudget | None:
    """The bound on reasoning of a request, None for no bound; raises Refusal for a model that does not reason."""
    param = "thinking_token_budget"
    if tokens is None:
        return None
    budget = engine.thinking_budget(tokens, thinking.is_open)
    if budget is None:
        raise refuse(f"'{param}' is not supported: this model does not reason.", param, "unsupported_parameter")
    return budget


def is_opened(prompt_end: str, markers: Markers) -> bool:
    """True when the end of a prompt has opened the reasoning and not closed it."""
    opening, closing = markers.opening, markers.closing
    start = prompt_end.rfind(opening)
    return start >= 0 and not prompt_end[start + len(opening) :].strip() and closing not in prompt_end[start:]
