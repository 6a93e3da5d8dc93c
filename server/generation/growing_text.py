"""Text that comes in pieces, and the texts of a call's frame found in it.

What reads it is a generator: it yields what it has found, and None where it needs more text.
"""

import re
import string
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER

MAX_PENDING_CHARACTERS = 256 * 1024
_PLACES = re.compile(f"({ID}|{NAME}|{NUMBER}|{KEY})")
_WRITTEN = {
    ID: re.compile(r"[\w.:-]{0,128}"),
    NUMBER: re.compile(r"\d{0,9}"),
    KEY: re.compile(r"(?:[^/\s<>=:,()'\"][^\s<>=:,()'\"]{0,255})?"),
}
Wait = Generator[None, None, None]


class Unsure(Exception):
    """The text ends before it is known whether the literal stands there."""


class Ended(Exception):
    """No more text comes, or too much of it was held back."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a literal ends in a text, and the id that stood in it."""

    end: int
    id: str


class GrowingText:
    """`text` is what has not been read yet; nothing follows it where `is_last`."""

    def __init__(self) -> None:
        self.text = ""
        self.is_last = False

    def more(self) -> Wait:
        """Wait for more text. Raises Ended."""
        if self.is_last or len(self.text) > MAX_PENDING_CHARACTERS:
            raise Ended
        yield None

    def sign(self, place: int) -> Generator[None, None, str]:
        """The character at a place. Raises Ended."""
        while place >= len(self.text):
            yield from self.more()
        return self.text[place]

    def solid(self, place: int) -> Generator[None, None, int]:
        """Where white space ends that begins at a place. Raises Ended."""
        while (yield from self.sign(place)).isspace():
            place += 1
        return place

    def skip(self, signs: str = "") -> Wait:
        """Take white space and these signs, up to something else. Raises Ended."""
        while not (rest := self.text.lstrip(string.whitespace + signs)):
            yield from self.more()
        self.text = rest

    def begins(self, text: str) -> Generator[None, None, bool]:
        """Whether what follows begins like this, white space included. Raises Ended."""
        while len(self.text) < len(text) and text.startswith(self.text):
            yield from self.more()
        return self.text.startswith(text)

    def at(self, literal: str, start: int = 0, name: str = "") -> Generator[None, None, Found | None]:
        """What `find` finds. Raises Ended."""
        while True:
            try:
                return find(literal, self.text, start, name)
            except Unsure:
                yield from self.more()

    def first(self, literals: Sequence[str], start: int = 0, name: str = "") -> Generator[None, None, str | None]:
        """What `first_of` finds. Raises Ended."""
        while True:
            try:
                return first_of(literals, self.text, start, name)
            except Unsure:
                yield from self.more()


def first_of(literals: Sequence[str], text: str, start: int, name: str = "") -> str | None:
    """The first of the literals that stands at `start`, None when none of them does. Raises Unsure."""
    is_unsure = False
    for literal in literals:
        try:
            if find(literal, text, start, name) is not None:
                return literal
        except Unsure:
            is_unsure = True
    if is_unsure:
        raise Unsure
    return None


def find(literal: str, text: str, start: int = 0, name: str = "") -> Found | None:
    """The literal at `start`, behind white space; None when something else stands there. Raises Unsure.

    name: what stands where the literal repeats the name of a function or a key; "" = any key. White space at the
    literal's end is not taken.
    """
    identifier = ""
    for place in _PLACES.split(literal):
        if (written := _WRITTEN.get(place)) is not None and not (place == KEY and name):
            start = _behind_space(text, start)
            found = written.match(text, start)
            end = start if found is None else found.end()
            if end == len(text):
                raise Unsure
            if end == start:
                return None
            identifier = text[start:end] if place == ID else identifier
            start = end
            continue
        for character in name if place in (NAME, KEY) else place:
            if character.isspace():
                continue
            start = _behind_space(text, start)
            if start == len(text):
                raise Unsure
            if text[start] != character:
                return None
            start += 1
    return Found(start, identifier)


def _behind_space(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def uncertain(text: str, literals: tuple[str, ...]) -> int:
    """Length of the end of `text` that may still become one of the literals, and of white space before it."""
    longest = 0
    for literal in literals:
        for size in range(min(len(text), len(literal) - 1), longest, -1):
            if literal.startswith(text[-size:]):
                longest = size
                break
    before = text[: len(text) - longest]
    return longest + len(before) - len(before.rstrip())
