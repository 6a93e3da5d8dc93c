"""An answer taken apart into reasoning, text and tool calls, as its tokens come."""

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

from engine.bundle.answer_format import AnswerFormat, CallFormat, Markers
from engine.request import Delta, TextLogprob
from server.generation.answers import FINISH_NAMES, TokenLogprobEntry, chat_entries
from server.generation.argument_reading import CallArguments, Schema
from server.generation.call_reading import CallBegin, CallReader
from server.generation.growing_text import Ended, GrowingText, uncertain, whole_object
from server.http.fields import Answer

MAX_SHORT_REFUSAL = 4096  # a longer text that is no call is not searched for another


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


Part = Thought | str | CallBegin | CallArguments
Steps = Generator[Part | None, None, None]
NO_SCHEMAS: Mapping[str, Schema] = {}
PLAIN = AnswerFormat()


class AnswerParser:
    """Takes the text of one choice apart, piece by piece.

    Reasoning: only a block at the very beginning; one that is never closed lasts to the end. White space around it is
    dropped, as what is around the text of an answer and white space around calls. Kept back: what may be the beginning
    of a marker, white space that one may follow, and a call until its name and the begin of its arguments are known. A
    call that does not begin as one comes out as the text it is.
    """

    def __init__(
        self,
        form: AnswerFormat = PLAIN,
        may_call: bool = True,
        schemas: Mapping[str, Schema] = NO_SCHEMAS,
        prefilled: str = "",
        reasoning: Markers | None = None,
        is_open: bool = False,
    ) -> None:
        """schemas: of the parameters of functions, by name. prefilled: what the prompt has written of the answer.
        reasoning: its markers; is_open: the prompt has already opened it."""
        self.is_thinking: bool | None = None if reasoning is not None else False  # None: that is not known yet
        opening, closing = (form.content.opening, form.content.closing) if form.content else ("", "")
        self._openings = frozenset(text for text in (opening, *form.asides) if text)
        self._closing = closing
        formats = (form.calls, *form.also) if form.calls is not None and may_call else ()
        self._formats = {form.mark(each): each for each in reversed(formats)}
        self._bare = next((mark for mark in self._formats if mark.startswith("{")), "")
        marks = {*self._openings, closing, form.restart, *self._formats} - {"", self._bare}
        self._marks = tuple(sorted(marks, key=len, reverse=True))
        self._search = re.compile("|".join(map(re.escape, self._marks)) or "(?!)")
        self._source = GrowingText()
        self._calls = CallReader(self._source, schemas, form.id_chars)
        self._has_said = False
        self._is_trimming = bool(prefilled)  # nothing but white space since a call or a marker
        self._is_closed = False  # the text has ended: what follows is no text of the answer
        self._steps = self._answer(reasoning, is_open, prefilled)

    def feed(self, text: str, is_last: bool = False) -> list[Part]:
        """What is certain now, in order; everything when `is_last`."""
        self._source.text += text
        self._source.is_last = is_last
        found: list[Part] = []
        for part in self._steps:
            if part is None:
                break
            last = found[-1] if found else None
            if isinstance(part, CallArguments) and isinstance(last, CallArguments):
                found[-1] = CallArguments(part.index, last.text + part.text)
            elif part:
                found.append(part)
        return found

    def _answer(self, reasoning: Markers | None, is_open: bool, prefilled: str) -> Steps:
        if reasoning is not None:
            yield from self._thoughts(reasoning, is_open)
        self._source.text = prefilled + self._source.text
        while not self._source.is_last or self._source.text:
            yield from self._next()

    def _thoughts(self, markers: Markers, is_open: bool) -> Steps:
        source = self._source
        while not is_open:
            shown = source.text.lstrip()
            if shown.startswith(markers.opening):
                source.text, is_open = shown[len(markers.opening) :], True
            elif source.is_last or not markers.opening.startswith(shown):
                self.is_thinking = False
                return
            else:
                yield None
        self.is_thinking, self._is_trimming = True, True
        while (end := source.text.find(markers.closing)) < 0 and not source.is_last:
            keep = len(source.text) - uncertain(source.text, (markers.closing,))
            text, source.text = source.text[:keep], source.text[keep:]
            if text := self._trimmed(text):
                yield Thought(text)
            yield None
        text, _, source.text = source.text.partition(markers.closing)
        if text := self._trimmed(text.rstrip()):
            yield Thought(text)
        if end >= 0:
            self.is_thinking, self._is_trimming = False, True

    def _next(self) -> Steps:
        source = self._source
        shown = source.text.lstrip()
        if self._bare and not self._has_said and (shown.startswith("{") or not (shown or source.is_last)):
            if shown:
                yield from self._called(self._formats[self._bare], len(source.text) - len(shown))
            else:
                yield None
            return
        mark = self._search.search(source.text)
        rest = "" if mark is None else source.text[mark.start() :]
        may_be_longer = any(len(each) > len(rest) and each.startswith(rest) for each in self._marks)
        if mark is not None and (source.is_last or not may_be_longer):
            yield from self._marked(mark)
            return
        end = len(source.text) if mark is None else mark.start()
        if (self._marks or self._formats) and not source.is_last:
            end -= uncertain(source.text[:end], self._marks if mark is None else ())
        text, source.text = source.text[:end], source.text[end:]
        yield self._text(text)
        if not source.is_last:
            yield None

    def _marked(self, mark: re.Match[str]) -> Steps:
        """The text in front of a mark, and the calls that it begins, if it begins some."""
        source, said = self._source, mark.string[: mark.start()]
        if mark[0] in self._formats and mark[0] not in self._openings:
            yield self._text(said.rstrip())
            source.text = source.text[len(said.rstrip()) :]
            yield from self._called(self._formats[mark[0]], len(said) - len(said.rstrip()))
            return
        is_closing = mark[0] == self._closing
        yield self._text(said.rstrip() if is_closing else said)
        source.text, self._is_trimming, self._is_closed = source.text[mark.end() :], True, is_closing

    def _called(self, form: CallFormat, lead: int) -> Steps:
        """A block of calls behind so much white space, or the text that it is instead."""
        source, before = self._source, self._calls.calls
        space, source.text = source.text[:lead], source.text[lead:]
        is_cut = False
        try:
            yield from self._calls.block(form)
        except Ended:
            is_cut = True
        if self._calls.calls > before:
            source.text = "" if is_cut else source.text
            self._has_said, self._is_trimming, self._is_closed = True, True, False
            return
        size = len(source.text) if is_cut or len(source.text) >= MAX_SHORT_REFUSAL else 1
        text, source.text = source.text[:size], source.text[size:]
        yield self._text(space + text)

    def _text(self, text: str) -> str:
        """Text of the answer: without white space behind a call or a marker, and nothing behind its end."""
        shown = "" if self._is_closed else self._trimmed(text)
        self._has_said = self._has_said or bool(shown.strip())
        return shown

    def _trimmed(self, text: str) -> str:
        shown = text.lstrip() if self._is_trimming else text
        self._is_trimming = self._is_trimming and not shown
        return shown


class CalledFunctionAnswer(Answer):
    name: str
    arguments: str


class ToolCallAnswer(Answer, kw_only=True):
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


class ParsedChoice:
    def __init__(self, parser: AnswerParser) -> None:
        self.parts: list[Part] = []
        self.logprobs: list[TextLogprob] = []  # that have not been taken
        self.entries: list[TokenLogprobEntry] = []  # those that have
        self.finish: ChatFinish | None = None  # OpenAI's; 'tool_calls' only where the last call was not cut
        self._parser = parser
        self._undecided, self._reasoning_tokens = 0, 0

    def take(self, delta: Delta) -> list[Part]:
        """The reasoning, text and calls that are certain with this delta."""
        self.logprobs += delta.logprobs
        before = self._parser.is_thinking
        parts = self._parser.feed(delta.text, delta.finish is not None)
        self.parts += parts
        self._undecided += len(delta.token_ids)
        if before or self._parser.is_thinking:
            self._reasoning_tokens += self._undecided
        if self._parser.is_thinking is not None:
            self._undecided = 0
        if delta.finish is not None:
            call = next((part for part in reversed(self.parts) if isinstance(part, CallBegin)), None)
            # The last call can be made unless a stop string has cut its arguments.
            is_call = call is not None and whole_object(self._arguments(call)) is not None
            name = FINISH_NAMES[delta.finish]
            self.finish = "tool_calls" if name == "stop" and is_call else name
        return parts

    def new_reasoning_tokens(self) -> int:
        """Tokens that turned out to be reasoning since this was last asked, markers included."""
        taken, self._reasoning_tokens = self._reasoning_tokens, 0
        return taken

    def message(self) -> ChatMessage:
        text = "".join(part for part in self.parts if isinstance(part, str))
        begun = [part for part in self.parts if isinstance(part, CallBegin)]
        functions = [CalledFunctionAnswer(call.name, self._arguments(call)) for call in begun]
        calls = [ToolCallAnswer(id=call.id, function=made) for call, made in zip(begun, functions, strict=True)]
        thoughts = "".join(part.text for part in self.parts if isinstance(part, Thought))
        content = text or None if calls else text
        return ChatMessage(content=content, reasoning_content=thoughts or UNSET, tool_calls=calls or UNSET)

    def taken_logprobs(self, alternatives: int) -> list[TokenLogprobEntry]:
        taken, self.logprobs = chat_entries(self.logprobs, alternatives), []
        self.entries += taken
        return taken

    def _arguments(self, call: CallBegin) -> str:
        pieces = (part for part in self.parts if isinstance(part, CallArguments) and part.index == call.index)
        return "".join(piece.text for piece in pieces)
