"""The message object and the events of its stream, in the order Anthropic's SDKs depend on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.errors import HexserveError
from engine.request import Delta, FinishReason
from server.http.error_formats import anthropic_body
from server.http.errors import from_engine
from server.http.merged_stream import ChoiceDelta
from server.writers.anthropic.blocks import AnswerBlock, Event, TextAnswer, ThinkingAnswer, ToolUseAnswer
from server.writers.parsed_choice import ParsedChoice, Part
from server.writers.reasoning import Thought
from server.writers.tool_calls import CallBegin
from server.writers.usage import Envelope, TokenCount

Block = TypeVar("Block", bound=AnswerBlock)


@dataclass(frozen=True, slots=True)
class MessageTerms:
    """What of a request its answer depends on. is_window_bound: the context window ends before `max_tokens`."""

    stop_sequences: tuple[str, ...]
    is_window_bound: bool
    shows_thoughts: bool
    request_id: str


class MessageWriter:
    """Owns the content of one message; streamed or not, the same blocks make it."""

    ending = b""  # message_stop is the end; there is no [DONE]
    events = 0

    def __init__(self, envelope: Envelope, count: TokenCount, choice: ParsedChoice, terms: MessageTerms) -> None:
        self._count = count
        self._choice = choice
        self._terms = terms
        self._id = envelope.id.replace("-", "_")
        self._model = envelope.model
        self._has_begun = False
        self._open: AnswerBlock | None = None
        self._content: list[dict[str, Any]] = []
        self._end: tuple[str | None, str | None] = (None, None)  # stop_reason and stop_sequence

    @property
    def finished(self) -> bool:
        """True when the model has said everything."""
        return self._count.finished

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[Event]:
        """The events of these deltas, behind the begin of the message, which comes once."""
        begin: list[Event] = [] if self._has_begun else [{"type": "message_start", "message": self._message()}]
        self._has_begun = True
        return begin + self._grow(deltas)

    def last_chunks(self) -> list[Event]:
        """The end of the last block, then of the message."""
        events = self._close()
        reason, sequence = self._end
        ended = {"stop_reason": reason, "stop_sequence": sequence}
        return [*events, {"type": "message_delta", "delta": ended, "usage": self._usage()}, {"type": "message_stop"}]

    def failure(self, error: HexserveError) -> list[Event]:
        """One error event; nothing follows it."""
        return [anthropic_body(from_engine(error)) | {"request_id": self._terms.request_id}]

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""
        self._grow(deltas)

    def answer(self) -> dict[str, Any]:
        """The message object."""
        self._close()
        if self._end[0] == "tool_use" and all(block["type"] != "tool_use" for block in self._content):
            self._end = ("end_turn", None)  # no call had an input that can be given to a tool
        return self._message()

    def _grow(self, deltas: Sequence[ChoiceDelta]) -> list[Event]:
        events: list[Event] = []
        for number, delta in deltas:
            self._count.add(number, delta)
            for part in self._choice.take(delta):
                events += self._say(part)
            self._count.add_reasoning(self._choice.new_reasoning_tokens())
            if delta.finish is not None:
                self._end = self._ended(delta, delta.finish)
        return events

    def _say(self, part: Part) -> list[Event]:
        events: list[Event] = []
        if isinstance(part, Thought):
            thoughts = self._open
            if not isinstance(thoughts, ThinkingAnswer):
                events, thoughts = self._opened(ThinkingAnswer(self._place(), self._terms.shows_thoughts))
            return events + thoughts.grow(part.text)
        if isinstance(part, str):
            said = self._open
            if not isinstance(said, TextAnswer):
                events, said = self._opened(TextAnswer(self._place()))
            return events + said.grow(part)
        if isinstance(part, CallBegin):
            return self._opened(ToolUseAnswer(self._place(), part.id, part.name))[0]
        assert isinstance(self._open, ToolUseAnswer), "arguments follow the begin of their call"
        return self._open.grow(part.text)

    def _place(self) -> int:
        """Where a new block goes: behind those that are done and the open one."""
        return len(self._content) + (self._open is not None)

    def _opened(self, block: Block) -> tuple[list[Event], Block]:
        """Make a block the open one; the one before it is done."""
        events = self._close()
        self._open = block
        return events + block.opened(), block

    def _close(self) -> list[Event]:
        block, self._open = self._open, None
        if block is None:
            return []
        self._content.append(block.whole())
        return block.closed()

    def _ended(self, delta: Delta, finish: FinishReason) -> tuple[str, str | None]:
        if finish is FinishReason.LENGTH:
            return ("model_context_window_exceeded" if self._terms.is_window_bound else "max_tokens"), None
        if isinstance(delta.stopped_by, str) and delta.stopped_by in self._terms.stop_sequences:
            return "stop_sequence", delta.stopped_by
        return ("tool_use" if self._choice.has_calls else "end_turn"), None

    def _message(self) -> dict[str, Any]:
        reason, sequence = self._end
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(self._content),
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": self._usage() | {"service_tier": "standard"},
        }

    def _usage(self) -> dict[str, Any]:
        counted = self._count.usage()
        cached = counted["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": counted["prompt_tokens"] - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": counted["completion_tokens"],
            "output_tokens_details": {"thinking_tokens": counted["completion_tokens_details"]["reasoning_tokens"]},
        }
