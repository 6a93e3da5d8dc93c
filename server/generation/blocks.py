"""Answers that are blocks in a row, one of them open: what Anthropic's messages and OpenAI's responses share."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from engine.request import Delta
from server.generation.answers import TokenCount
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.framing import AnswerWriter
from server.generation.parsing import ParsedChoice, Part, Thought
from server.generation.stream import ChoiceDelta

Event = TypeVar("Event")


class Block(ABC, Generic[Event]):
    """One block that is being built, at its place in the answer. grows_by: the kind of part that goes on in it."""

    grows_by: type[Part] = str

    def __init__(self, index: int) -> None:
        self._index = index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """What there is of its text, or of the arguments of a call."""
        return "".join(self._pieces)

    @abstractmethod
    def opened(self) -> list[Event]:
        """The events that begin it."""

    @abstractmethod
    def grow(self, text: str) -> list[Event]:
        """More of its text, and the events of that."""


Open = TypeVar("Open", bound=Block[Any])


class BlockWriter(AnswerWriter, Generic[Event, Open]):
    """Makes the events of the blocks of one choice; streamed or not, the same events make the answer."""

    def __init__(self, count: TokenCount, choice: ParsedChoice) -> None:
        self._count = count
        self._choice = choice
        self._open: Open | None = None
        self._done = 0  # blocks that are closed

    def _grow(self, deltas: Sequence[ChoiceDelta]) -> list[Event]:
        events: list[Event] = []
        for number, delta in deltas:
            self._count.add(number, delta)
            for part in self._choice.take(delta):
                events += self._say(part)
            self._count.add_reasoning(self._choice.new_reasoning_tokens())
            if delta.finish is not None:
                self._end(delta)
        return events

    def _say(self, part: Part) -> list[Event]:
        events: list[Event] = []
        if self._open is None or not isinstance(part, self._open.grows_by):
            block = self._block(part)
            events = self._close()
            self._open = block
            events += block.opened()
        text = _text(part)
        return events if text is None else events + self._open.grow(text)

    @property
    def _place(self) -> int:
        """Where a new block goes: behind those that are done and the open one."""
        return self._done + (self._open is not None)

    @abstractmethod
    def _block(self, part: Part) -> Open:
        """The block that begins with a part."""

    @abstractmethod
    def _close(self) -> list[Event]:
        """The events of the end of the open block, if there is one."""

    @abstractmethod
    def _end(self, delta: Delta) -> None:
        """This was the last delta."""


def _text(part: Part) -> str | None:
    """What a part adds to its block; None of one that only begins it."""
    match part:
        case Thought(text) | CallArguments(_, text):
            return text
        case CallBegin():
            return None
        case str():
            return part
