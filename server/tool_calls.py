"""Tool calls in the model's text: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` (Hermes and Qwen)."""

import uuid
from dataclasses import dataclass

import msgspec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_CALL_CHARACTERS = 256 * 1024


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call; `arguments` is the JSON text of an object."""

    id: str
    name: str
    arguments: str


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, object] = msgspec.field(default_factory=dict)


def template_takes_tools(template: str) -> bool:
    """True when a chat template lists tools and teaches the model this format."""
    return "tools" in template and OPEN in template


class CallSplitter:
    """Splits the text of one choice, piece by piece, into plain text and calls.

    Held back: what may be the beginning of a marker, the inside of a call, and white space, which is dropped when a
    call follows it or precedes it. A call that cannot be parsed comes out as the text it is.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_inside = False
        self._has_calls = False
        self._is_after_call = False  # and nothing but white space since

    @property
    def has_calls(self) -> bool:
        """True once a call came out."""
        return self._has_calls

    def feed(self, text: str, is_last: bool = False) -> list[str | FunctionCall]:
        """What is certain now, in order; everything when `is_last`."""
        self._held += text
        found: list[str | FunctionCall] = []
        while (piece := self._next()) is not None:
            found.append(piece)
        if is_last:
            found += self._rest()
        return [piece for piece in found if piece]

    def _next(self) -> str | FunctionCall | None:
        """The next certain piece, None when more text is needed."""
        if self._is_inside:
            end = self._held.find(CLOSE, len(OPEN))
            if end < 0:
                return self._give_up() if len(self._held) > MAX_CALL_CHARACTERS else None
            block, self._held = self._held[: end + len(CLOSE)], self._held[end + len(CLOSE) :]
            self._is_inside = False
            return self._parsed(block[len(OPEN) : -len(CLOSE)]) or block
        start = self._held.find(OPEN)
        if start >= 0:
            text, self._held = self._held[:start], self._held[start:]
            self._is_inside = True
            return self._trimmed(text.rstrip())
        keep = len(self._held) - _uncertain(self._held)
        text, self._held = self._trimmed(self._held[:keep]), self._held[keep:]
        return text or None

    def _rest(self) -> list[str | FunctionCall]:
        text, self._held = self._held, ""
        call = self._parsed(text[len(OPEN) :]) if self._is_inside else None
        self._is_inside = False
        if call is not None:
            return [call]
        return [self._trimmed(text).rstrip() if self._has_calls else text]

    def _give_up(self) -> str:
        text, self._held = self._held, ""
        self._is_inside = False
        return text

    def _trimmed(self, text: str) -> str:
        shown = text.lstrip() if self._is_after_call else text
        self._is_after_call = self._is_after_call and not shown
        return shown

    def _parsed(self, block: str) -> FunctionCall | None:
        try:
            call = msgspec.json.decode(block.strip().encode("utf-8", "replace"), type=_Call)
        except (msgspec.MsgspecError, RecursionError):
            return None
        self._has_calls = self._is_after_call = True
        return FunctionCall(f"call_{uuid.uuid4().hex[:24]}", call.name, msgspec.json.encode(call.arguments).decode())


def _uncertain(text: str) -> int:
    """Length of the end of `text` that may still turn out to be a marker or white space before one."""
    longest = min(len(text), len(OPEN) - 1)
    marker = next((size for size in range(longest, 0, -1) if OPEN.startswith(text[-size:])), 0)
    before = text[: len(text) - marker]
    return marker + len(before) - len(before.rstrip())
