"""What a model thinks before it answers: told from its answer by the markers of its chat template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from engine.request import Delta, ReasoningBudget
from server.engine_seam import EngineLike
from server.http.errors import refuse

END_TOKENS = 32  # of a prompt: enough for a marker and the line break after it

Markers = tuple[str, str]  # what opens and what closes the reasoning, such as <think> and </think>


@dataclass(frozen=True, slots=True)
class Thought:
    """A piece of reasoning."""

    text: str


class _State(Enum):
    BEFORE = auto()  # nothing but white space so far
    INSIDE = auto()
    AFTER = auto()  # the answer; markers in it are text


class ReasoningSplitter:
    """Splits the text of one choice, piece by piece. White space around the markers is dropped.

    Held back: what may be the beginning of a marker, and white space that a marker may follow. Only a block at the
    very beginning is reasoning; one that is never closed lasts to the end.
    """

    def __init__(self, markers: Markers, is_open: bool) -> None:
        """`is_open`: the prompt has already opened the block."""
        self._opening, self._closing = markers
        self._state = _State.INSIDE if is_open else _State.BEFORE
        self._held = ""
        self._is_trimming = True  # at the beginning of a part: its leading white space is dropped
        self._unassigned = 0
        self.tokens = 0  # of the deltas that were reasoning, markers included

    def feed(self, delta: Delta) -> list[str | Thought]:
        """What is certain now, in order; everything when the delta is the last."""
        was_inside = self._state is _State.INSIDE
        was_before = self._state is _State.BEFORE
        self._held += delta.text
        found: list[str | Thought] = []
        while (piece := self._next(delta.finish is not None)) is not None:
            found.append(piece)
        self._count(len(delta.token_ids), was_inside, was_before)
        return [piece for piece in found if (piece.text if isinstance(piece, Thought) else piece)]

    def _count(self, tokens: int, was_inside: bool, was_before: bool) -> None:
        if was_before and self._state is _State.BEFORE:
            self._unassigned += tokens
        elif was_inside or self._state is _State.INSIDE:
            self.tokens += tokens + self._unassigned
            self._unassigned = 0

    def _next(self, is_last: bool) -> str | Thought | None:
        if not self._held:
            return None
        if self._state is _State.BEFORE:
            return self._before(is_last)
        if self._state is _State.INSIDE:
            return self._inside(is_last)
        text, self._held = self._trimmed(self._held), ""
        return text

    def _before(self, is_last: bool) -> str | None:
        shown = self._held.lstrip()
        if shown.startswith(self._opening):
            self._held, self._state = shown[len(self._opening) :], _State.INSIDE
            return ""
        if not is_last and self._opening.startswith(shown):
            return None  # white space, or the beginning of the marker
        self._is_trimming = False
        self._state = _State.AFTER
        return ""

    def _inside(self, is_last: bool) -> Thought | None:
        end = self._held.find(self._closing)
        if end >= 0:
            text, self._held = self._held[:end].rstrip(), self._held[end + len(self._closing) :]
            thought = Thought(self._trimmed(text))
            self._state, self._is_trimming = _State.AFTER, True
            return thought
        keep = len(self._held) if is_last else len(self._held) - _uncertain(self._held, self._closing)
        if not keep:
            return None
        text, self._held = self._held[:keep], self._held[keep:]
        return Thought(self._trimmed(text.rstrip() if is_last else text))

    def _trimmed(self, text: str) -> str:
        shown = text.lstrip() if self._is_trimming else text
        self._is_trimming = self._is_trimming and not shown
        return shown


@dataclass(frozen=True, slots=True)
class Thinking:
    """How the model of a request reasons. `markers` None = not at all.

    is_open: the prompt has opened the block. is_over: it has closed it too, so that the answer comes at once.
    """

    markers: Markers | None
    is_open: bool = False
    is_over: bool = False

    def splitter(self) -> ReasoningSplitter | None:
        """A splitter for one choice, None when there is nothing to split off."""
        return None if self.markers is None else ReasoningSplitter(self.markers, self.is_open)


def thinking_after(prompt: Sequence[int], engine: EngineLike) -> Thinking:
    """How the model goes on after these token ids."""
    markers = engine.info.manifest.text.markers.get("reasoning")
    if markers is None:
        return Thinking(None)
    end = b"".join(engine.token_pieces(prompt[-END_TOKENS:])).decode("utf-8", "replace")
    return Thinking(markers, opened_by(end, markers), end.rstrip().endswith(markers[1]))


def template_options(
    given: Mapping[str, Any] | None, effort: str | None, adds_prompt: bool | None = None
) -> dict[str, Any]:
    """What the chat template is told. An effort is on or off for templates that know no degrees."""
    options: dict[str, Any] = {}
    if effort is not None:
        thinks = effort != "none"
        options = {"reasoning_effort": effort, "enable_thinking": thinks, "thinking": thinks}
    if adds_prompt is not None:
        options["add_generation_prompt"] = adds_prompt
    return options | dict(given or {})


def budgeted(tokens: int | None, thinking: Thinking, engine: EngineLike, param: str) -> ReasoningBudget | None:
    """The bound on reasoning of a request; Refusal for a model that does not reason."""
    if tokens is None:
        return None
    budget = engine.reasoning_budget(tokens, thinking.is_open)
    if budget is None:
        raise refuse(f"'{param}' is not supported: this model does not reason.", param, "unsupported_parameter")
    return budget


def opened_by(prompt_end: str, markers: Markers) -> bool:
    """Whether the end of a prompt has opened the reasoning and not closed it."""
    opening, closing = markers
    start = prompt_end.rfind(opening)
    return start >= 0 and not prompt_end[start + len(opening) :].strip() and closing not in prompt_end[start:]


def _uncertain(text: str, marker: str) -> int:
    """Length of the end of `text` that may still become the marker, or white space before it."""
    longest = min(len(text), len(marker) - 1)
    partial = next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)
    before = text[: len(text) - partial]
    return partial + len(before) - len(before.rstrip())
