"""One choice of a chat or response, taken apart into reasoning, text and tool calls."""

from typing import Any

from engine.request import Delta, FinishReason, TextLogprob
from server.writers.reasoning import ReasoningSplitter, Thought
from server.writers.tool_calls import CallArguments, CallBegin, CallSplitter, Piece
from server.writers.usage import FINISH_NAMES

Part = Thought | Piece


class ParsedChoice:
    """What one choice has said so far. `splitter` finds calls in the answer, None = it is text as it is."""

    def __init__(self, splitter: CallSplitter | None, reasoning: ReasoningSplitter | None = None) -> None:
        self.parts: list[Part] = []
        self.logprobs: list[TextLogprob] = []
        self.finish: str | None = None
        self._splitter = splitter
        self._reasoning = reasoning
        self._counted = 0

    def take(self, delta: Delta) -> list[Part]:
        """The reasoning, text and calls that are certain with this delta."""
        self.logprobs += delta.logprobs
        pieces = [delta.text] if self._reasoning is None else self._reasoning.feed(delta)
        if self._splitter is None:
            return [piece for piece in pieces if piece]
        parts: list[Part] = [piece for piece in pieces if isinstance(piece, Thought)]
        text = "".join(piece for piece in pieces if isinstance(piece, str))
        return parts + self._splitter.feed(text, delta.finish is not None)

    def new_reasoning_tokens(self) -> int:
        """Tokens that turned out to be reasoning since this was last asked."""
        before, self._counted = self._counted, 0 if self._reasoning is None else self._reasoning.tokens
        return self._counted - before

    def message(self) -> dict[str, Any]:
        """The whole message; content is null when there are only calls."""
        text = "".join(part for part in self.parts if isinstance(part, str))
        calls = [
            {"id": part.id, "type": "function", "function": {"name": part.name, "arguments": self._arguments(part)}}
            for part in self.parts
            if isinstance(part, CallBegin)
        ]
        thoughts = "".join(part.text for part in self.parts if isinstance(part, Thought))
        message: dict[str, Any] = {"role": "assistant", "content": text or None if calls else text, "refusal": None}
        if thoughts:
            message["reasoning_content"] = thoughts
        return message | {"tool_calls": calls} if calls else message

    def _arguments(self, call: CallBegin) -> str:
        pieces = (part for part in self.parts if isinstance(part, CallArguments) and part.index == call.index)
        return "".join(piece.text for piece in pieces)

    @property
    def has_calls(self) -> bool:
        """True once a call came out."""
        return self._splitter is not None and self._splitter.has_calls

    def finish_name(self, finish: FinishReason) -> str:
        """OpenAI's finish_reason; a text that was cut stays 'length' even after a call."""
        name = FINISH_NAMES[finish]
        return "tool_calls" if self.has_calls and name == "stop" else name
