"""Content blocks of an answer: built piece by piece, with the events of each step."""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from server.protocol.anthropic.signatures import signature_of

Event = dict[str, Any]


class AnswerBlock(ABC):
    """One block that is being built. `index` is its place in the message."""

    delta_type, delta_field = "", ""

    def __init__(self, index: int) -> None:
        self._index = index
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """All that was said in it."""
        return "".join(self._texts)

    @abstractmethod
    def empty(self) -> dict[str, Any]:
        """The block before anything was said in it."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The block as it is now."""

    def opened(self) -> list[Event]:
        """The event that begins it."""
        return [{"type": "content_block_start", "index": self._index, "content_block": self.empty()}]

    def grow(self, text: str) -> list[Event]:
        """More of its text."""
        self._texts.append(text)
        return self._delta({"type": self.delta_type, self.delta_field: text})

    def closed(self) -> list[Event]:
        """The event that ends it."""
        return [{"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: dict[str, str]) -> list[Event]:
        return [{"type": "content_block_delta", "index": self._index, "delta": delta}]


class TextAnswer(AnswerBlock):
    """What the model says."""

    delta_type, delta_field = "text_delta", "text"

    def empty(self) -> dict[str, Any]:
        """A text block."""
        return {"type": "text", "text": ""}

    def whole(self) -> dict[str, Any]:
        """A text block."""
        return {"type": "text", "text": self.text}


class ThinkingAnswer(AnswerBlock):
    """What the model thinks; left out, it is only in the signature."""

    delta_type, delta_field = "thinking_delta", "thinking"

    def __init__(self, index: int, is_shown: bool) -> None:
        super().__init__(index)
        self._is_shown = is_shown

    def empty(self) -> dict[str, Any]:
        """A thinking block, not signed yet."""
        return {"type": "thinking", "thinking": "", "signature": ""}

    def whole(self) -> dict[str, Any]:
        """A thinking block."""
        shown = self.text if self._is_shown else ""
        return {"type": "thinking", "thinking": shown, "signature": signature_of(self.text, self._is_shown)}

    def grow(self, text: str) -> list[Event]:
        """More thoughts; no event when they are left out."""
        events = super().grow(text)
        return events if self._is_shown else []

    def closed(self) -> list[Event]:
        """The signature, then the end."""
        signature = signature_of(self.text, self._is_shown)
        return [*self._delta({"type": "signature_delta", "signature": signature}), *super().closed()]


class ToolUseAnswer(AnswerBlock):
    """A call; its input grows as JSON text."""

    delta_type, delta_field = "input_json_delta", "partial_json"

    def __init__(self, index: int, call_id: str, name: str) -> None:
        super().__init__(index)
        self._call = {"type": "tool_use", "id": f"toolu_{call_id.removeprefix('call_')}", "name": name}

    def empty(self) -> dict[str, Any]:
        """A call without its input."""
        return self._call | {"input": {}}

    def whole(self) -> dict[str, Any]:
        """A call; the text that was written where its input is no JSON object, because it was cut or is wrong."""
        try:
            return self._call | {"input": msgspec.json.decode(self.text.encode(), type=dict[str, Any])}
        except (msgspec.MsgspecError, RecursionError):
            return {"type": "text", "text": self.text}
