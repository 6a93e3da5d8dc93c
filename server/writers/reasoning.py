"""Reasoning, told from the answer that follows it by the markers of the model's chat template."""

from dataclasses import dataclass
from enum import Enum, auto

from engine.bundle.answer_format import Markers
from engine.request import Delta


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
        self._opening, self._closing = markers.opening, markers.closing
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


def reasoning_splitter(markers: Markers | None, is_open: bool) -> ReasoningSplitter | None:
    """A splitter for one choice, None for a model that does not reason."""
    return None if markers is None else ReasoningSplitter(markers, is_open)


def _uncertain(text: str, marker: str) -> int:
    """Length of the end of `text` that may still become the marker, or white space before it."""
    longest = min(len(text), len(marker) - 1)
    partial = next((size for size in range(longest, 0, -1) if marker.startswith(text[-size:])), 0)
    before = text[: len(text) - partial]
    return partial + len(before) - len(before.rstrip())
