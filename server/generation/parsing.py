"""An answer taken apart into reasoning, text and tool calls, as its tokens come."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

from msgspec import UNSET, UnsetType

from engine.bundle.answer_format import AnswerFormat, Markers
from engine.request import Delta, FinishReason, TextLogprob
from server.generation.answers import FINISH_NAMES, TokenLogprobEntry, chat_entries
from server.generation.argument_readers import Schema
from server.generation.call_block import CallArguments, CallBegin, CallBlock, Piece
from server.generation.literals import uncertain
from server.http.fields import Answer


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


class _State(Enum):
    BEFORE = auto()  # nothing but white space so far
    INSIDE = auto()
    AFTER = auto()  # the answer; markers in it are text


class ReasoningSplitter:
    """Splits the text of one choice, piece by piece. White space around the markers is dropped.

    Kept back: what may be the beginning of a marker, and white space that a marker may follow. Only a block at the
    very beginning is reasoning; one that is never closed lasts to the end.
    """

    def __init__(self, markers: Markers, is_open: bool) -> None:
        """`is_open`: the prompt has already opened the block."""
        self._opening, self._closing = markers.opening, markers.closing
        self._state = _State.INSIDE if is_open else _State.BEFORE
        self._pending = ""
        self._is_trimming = True  # at the beginning of a part: its leading white space is dropped
        self._unassigned = 0
        self.tokens = 0  # of the deltas that were reasoning, markers included

    def feed(self, delta: Delta) -> list[str | Thought]:
        """What is certain now, in order; everything when the delta is the last."""
        was_inside = self._state is _State.INSIDE
        was_before = self._state is _State.BEFORE
        self._pending += delta.text
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
        if not self._pending:
            return None
        if self._state is _State.BEFORE:
            return self._before(is_last)
        if self._state is _State.INSIDE:
            return self._inside(is_last)
        text, self._pending = self._trimmed(self._pending), ""
        return text

    def _before(self, is_last: bool) -> str | None:
        shown = self._pending.lstrip()
        if shown.startswith(self._opening):
            self._pending, self._state = shown[len(self._opening) :], _State.INSIDE
            return ""
        if not is_last and self._opening.startswith(shown):
            return None  # white space, or the beginning of the marker
        self._is_trimming = False
        self._state = _State.AFTER
        return ""

    def _inside(self, is_last: bool) -> Thought | None:
        end = self._pending.find(self._closing)
        if end >= 0:
            text, self._pending = self._pending[:end].rstrip(), self._pending[end + len(self._closing) :]
            thought = Thought(self._trimmed(text))
            self._state, self._is_trimming = _State.AFTER, True
            return thought
        keep = len(self._pending) if is_last else len(self._pending) - uncertain(self._pending, (self._closing,))
        if not keep:
            return None
        text, self._pending = self._pending[:keep], self._pending[keep:]
        return Thought(self._trimmed(text.rstrip() if is_last else text))

    def _trimmed(self, text: str) -> str:
        shown = text.lstrip() if self._is_trimming else text
        self._is_trimming = self._is_trimming and not shown
        return shown


NO_SCHEMAS: Mapping[str, Schema] = {}


class CallSplitter:
    """Splits the text of one choice, piece by piece, into plain text and calls.

    Kept back: what may be the beginning of a marker, a call until its name and the begin of its arguments are known,
    and white space, which is dropped when a call follows it or precedes it. A call that does not begin as one comes
    out as the text it is. What is around the text of an answer is dropped.
    """

    def __init__(
        self, form: AnswerFormat, may_call: bool = True, schemas: Mapping[str, Schema] = NO_SCHEMAS, prefilled: str = ""
    ) -> None:
        """schemas: of the parameters of functions, by name. prefilled: what the prompt has written of the answer."""
        self._form, self._schemas = form, schemas
        opening, closing = (form.content.opening, form.content.closing) if form.content else ("", "")
        self._openings = frozenset(text for text in (opening, *form.asides) if text)
        self._closing = closing
        taken = tuple(text for text in (*self._openings, closing, form.restart) if text)
        formats = (form.calls, *form.also) if form.calls is not None and may_call else ()
        self._formats = {form.mark(each): each for each in reversed(formats)}
        self._bare = next((mark for mark in self._formats if mark.startswith("{")), "")
        marks = {mark for mark in self._formats if mark != self._bare} | set(taken)
        self._marks = tuple(sorted(marks, key=len, reverse=True))
        self._search = re.compile("|".join(map(re.escape, self._marks))) if self._marks else None
        self._pending, self._lead = prefilled, ""
        self._block: CallBlock | None = None
        self._ids: set[str] = set()
        self._calls = 0
        self._has_said = False
        self._is_trimming = bool(prefilled)  # nothing but white space since a call or a marker
        self._is_closed = False  # the text has ended: what follows is no text of the answer

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def feed(self, text: str, is_last: bool = False) -> list[Piece]:
        """What is certain now, in order; everything when `is_last`."""
        self._pending += text
        found: list[Piece] = []
        while (pieces := self._next(is_last)) is not None:
            found += pieces
        return [piece for piece in found if piece]

    def _next(self, is_last: bool) -> list[Piece] | None:
        """What comes next, None when more text is needed for it."""
        if self._block is not None:
            return self._called(self._block, is_last)
        if self._bare and not self._has_said:
            shown = self._pending.lstrip()
            if shown.startswith("{"):
                return self._opened(self._bare, self._pending[: len(self._pending) - len(shown)], shown)
            if not shown and not is_last:
                return None
        return self._said(is_last)

    def _said(self, is_last: bool) -> list[Piece] | None:
        mark = self._search.search(self._pending) if self._search is not None else None
        if mark is None or (not is_last and self._may_be_longer(mark)):
            end = mark.start() if mark is not None else len(self._pending)
            if not is_last:
                end -= uncertain(self._pending[:end], self._marks if mark is None else ())
            text, self._pending = self._pending[:end], self._pending[end:]
            return [self._text(text)] if text else None
        text, rest = self._pending[: mark.start()], self._pending[mark.end() :]
        if mark[0] in self._formats and mark[0] not in self._openings:
            kept = text.rstrip()
            return [self._text(kept), *self._opened(mark[0], text[len(kept) :], self._pending[mark.start() :])]
        said = self._text(text.rstrip() if mark[0] == self._closing else text)
        self._pending, self._is_trimming = rest, True
        self._is_closed = mark[0] == self._closing
        return [said]

    def _may_be_longer(self, mark: re.Match[str]) -> bool:
        rest = self._pending[mark.start() :]
        return any(len(each) > len(rest) and each.startswith(rest) for each in self._marks)

    def _opened(self, mark: str, lead: str, pending: str) -> list[Piece]:
        self._lead, self._pending = lead, pending
        form = self._formats[mark]
        self._block = CallBlock(form, self._schemas, self._calls, self._form.id_chars, self._ids)
        return []

    def _called(self, block: CallBlock, is_last: bool) -> list[Piece] | None:
        pieces = block.feed(self._pending, is_last)
        self._pending = ""
        if block.calls > self._calls:
            self._calls, self._lead, self._has_said = block.calls, "", True
            self._is_trimming, self._is_closed = True, False
        if block.rest is None:
            return pieces or None
        self._pending, self._block = block.rest, None
        if block.refused:
            return [*pieces, self._text(self._lead + block.refused)]
        return pieces

    def _text(self, text: str) -> str:
        """Text of the answer: without white space behind a call or a marker, and nothing behind its end."""
        if self._is_closed:
            return ""
        shown = text.lstrip() if self._is_trimming else text
        self._is_trimming = self._is_trimming and not shown
        self._has_said = self._has_said or bool(shown.strip())
        return shown


class CalledFunctionAnswer(Answer):
    """Name and JSON text of the arguments."""

    name: str
    arguments: str


class ToolCallAnswer(Answer, kw_only=True):
    """One call the model made."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunctionAnswer


class ChatMessage(Answer, kw_only=True):
    """What the model said; `content` is null when it only called tools."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET


ChatFinish = Literal["stop", "length", "tool_calls"]
Part = Thought | Piece


class ParsedChoice:
    """What one choice has said so far. `splitter` finds calls in the answer, None = it is text as it is."""

    def __init__(self, splitter: CallSplitter | None, reasoning: ReasoningSplitter | None = None) -> None:
        self.parts: list[Part] = []
        self.logprobs: list[TextLogprob] = []
        self.finish: ChatFinish | None = None
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

    def message(self) -> ChatMessage:
        """The whole message; content is null when there are only calls."""
        text = "".join(part for part in self.parts if isinstance(part, str))
        calls = [
            ToolCallAnswer(id=part.id, function=CalledFunctionAnswer(part.name, self._arguments(part)))
            for part in self.parts
            if isinstance(part, CallBegin)
        ]
        thoughts = "".join(part.text for part in self.parts if isinstance(part, Thought))
        content = text or None if calls else text
        return ChatMessage(content=content, reasoning_content=thoughts or UNSET, tool_calls=calls or UNSET)

    def taken_logprobs(self, alternatives: int) -> list[TokenLogprobEntry]:
        """The log-probabilities that have come since they were last taken, each with so many alternatives."""
        taken, self.logprobs = self.logprobs, []
        return chat_entries(taken, alternatives)

    def _arguments(self, call: CallBegin) -> str:
        pieces = (part for part in self.parts if isinstance(part, CallArguments) and part.index == call.index)
        return "".join(piece.text for piece in pieces)

    @property
    def has_calls(self) -> bool:
        return self._splitter is not None and self._splitter.has_calls

    def finish_name(self, finish: FinishReason) -> ChatFinish:
        """OpenAI's finish_reason; a text that was cut stays 'length' even after a call."""
        name = FINISH_NAMES[finish]
        return "tool_calls" if self.has_calls and name == "stop" else name
