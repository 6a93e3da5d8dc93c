"""Texts of a call's frame, found in what a model says. White space that the frame has may be other or missing."""

import re
from dataclasses import dataclass, field

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER, TAG

_PLACES = re.compile(f"({ID}|{NAME}|{NUMBER}|{KEY})")
_ID = re.compile(r"[\w.:-]{0,128}")
_NUMBER = re.compile(r"\d{0,9}")


@dataclass(frozen=True, slots=True)
class Found:
    """Where a literal ends in a text, and what stood in its places."""

    end: int
    places: dict[str, str] = field(default_factory=dict)


class Unsure(Exception):
    """The text ends before it is known whether the literal stands there."""


def find(literal: str, text: str, start: int = 0, name: str = "") -> Found | None:
    """The literal at `start`, behind white space; None when something else stands there. Raises Unsure.

    name: what stands where the literal repeats the name of a function or a key. White space at the literal's end is
    not taken.
    """
    places: dict[str, str] = {}
    for place in _PLACES.split(literal):
        part = name if place in (NAME, KEY) else place
        if part in (ID, NUMBER):
            start = _behind_space(text, start)
            found = (_ID if part == ID else _NUMBER).match(text, start)
            end = start if found is None else found.end()
            if end == len(text):
                raise Unsure
            if end == start:
                return None
            places[part], start = text[start:end], end
            continue
        for character in part:
            if character.isspace():
                continue
            start = _behind_space(text, start)
            if start == len(text):
                raise Unsure
            if text[start] != character:
                return None
            start += 1
    return Found(start, places)


def is_blank(literal: str) -> bool:
    """Nothing of it could be found."""
    return not literal.strip()


def has_tag(literal: str) -> bool:
    """Whether it can be told from text wherever it stands."""
    return TAG.search(literal) is not None


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


def _behind_space(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start
