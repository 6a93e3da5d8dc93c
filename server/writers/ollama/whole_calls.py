"""Tool calls in one piece: Ollama's format has arguments as an object, so a call is written when it is complete."""

from collections.abc import Sequence
from typing import Any

import msgspec

from server.writers.parsed_choice import Part
from server.writers.tool_calls import CallArguments, CallBegin


class WholeCalls:
    """Holds back the call that is being made. One that the end of the answer cuts is left out."""

    def __init__(self) -> None:
        self._open: CallBegin | None = None
        self._arguments: list[str] = []

    def feed(self, parts: Sequence[Part], is_last: bool) -> tuple[list[Part], list[dict[str, Any]]]:
        """What is no part of a call, and the calls that are complete now."""
        others: list[Part] = []
        calls: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, CallArguments):
                self._arguments.append(part.text)
                continue
            calls += self._close()
            if isinstance(part, CallBegin):
                self._open = part
            else:
                others.append(part)
        return others, calls + self._close() if is_last else calls

    def _close(self) -> list[dict[str, Any]]:
        call, text = self._open, "".join(self._arguments)
        self._open, self._arguments = None, []
        if call is None:
            return []
        try:
            arguments = msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError):
            return []
        return [{"id": call.id, "function": {"index": call.index, "name": call.name, "arguments": arguments}}]
