"""Texts of a call's frame, found in what a model says, and values that it wrote in another way than JSON."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER
from engine.grammar.spec import Types, allows, resolved, types_of

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


T = TypeVar("T")
DEEPEST = 64
_NUMBER_loose_values = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD = re.compile(r"[\w.-]+")
_WORDS: Mapping[str, Any] = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}


def as_json(value: Any) -> str:
    """JSON text of a value, with Unicode as it is."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def read_value(text: str, types: Types | None) -> Any:
    """The value of a text that is JSON or a literal of Python of one of these types, else the text itself."""
    if types == frozenset(("string",)):
        return text
    for read in (_strict_json, read_literal):
        try:
            value = read(text.strip())
        except (ValueError, RecursionError):
            continue
        if allows(types, value):
            return value
    return text


def read_literal(text: str, quote: str = "") -> Any:
    """The value of a literal; strings are in `quote`, without escapes, or in Python's. ValueError for anything else."""
    reader = _LiteralReader(text, quote)
    value = reader.value(0)
    if reader.rest().strip():
        raise ValueError("text behind a value")
    return value


class LiteralScanner:
    """Finds where a literal ends in a text that grows: at one of the characters `ends`, outside of its brackets."""

    def __init__(self, quote: str, ends: str) -> None:
        self._marks = _marks(quote)
        self._ends = ends
        self._place, self._depth, self._mark = 0, 0, ""

    def end(self, text: str) -> int:
        """Where it ends, -1 when more is needed. `text` begins as it did the time before."""
        while self._place < len(text):
            if self._mark:
                self._place, has_end = _string_end(text, self._place, self._mark)
                if not has_end:
                    return -1
                self._mark = ""
                continue
            rest = text[self._place : self._place + max(map(len, self._marks))]
            self._mark = next((mark for mark in self._marks if rest.startswith(mark)), "")
            if self._mark:
                self._place += len(self._mark)
                continue
            if any(mark.startswith(rest) for mark in self._marks):
                return -1
            if self._depth == 0 and rest[0] in self._ends:
                return self._place
            self._depth += (rest[0] in "([{") - (rest[0] in ")]}")
            self._place += 1
        return -1


def _marks(quote: str) -> tuple[str, ...]:
    """What strings are between."""
    return ("'", '"') if quote in ("", "'", '"') else (quote,)


def _string_end(text: str, start: int, mark: str) -> tuple[int, bool]:
    """Where a string ends whose inside begins at `start`; False: it has no end, and this part has to be seen again."""
    if len(mark) > 1:
        end = text.find(mark, start)
        return (end + len(mark), True) if end >= 0 else (max(start, len(text) - len(mark) + 1), False)
    while start < len(text) and text[start] != mark:
        if text[start] == "\\" and start + 1 == len(text):
            return start, False
        start += 2 if text[start] == "\\" else 1
    return (start + 1, True) if start < len(text) else (start, False)


def _string_size(text: str, start: int, quote: str) -> int:
    """Characters of the string that begins at `start`, 0 when none does; ValueError when it has no end."""
    mark = next((mark for mark in _marks(quote) if text.startswith(mark, start)), "")
    if not mark:
        return 0
    end, has_end = _string_end(text, start + len(mark), mark)
    if not has_end:
        raise ValueError("a string without an end")
    return end - start


class _LiteralReader:
    """One literal: lists, tuples, dictionaries with keys in quotes or without, strings, numbers and words."""

    def __init__(self, text: str, quote: str) -> None:
        self._text, self._quote, self._place = text, quote, 0

    def rest(self) -> str:
        return self._text[self._place :]

    def value(self, depth: int) -> Any:
        if depth > DEEPEST:
            raise ValueError("nested too deeply")
        self._skip()
        size = _string_size(self._text, self._place, self._quote)
        if size > 0:
            return self._string(size)
        sign = self._text[self._place : self._place + 1]
        if sign == "{":
            return dict(self._listed("}", lambda: self._entry(depth + 1)))
        if sign in ("[", "("):
            return self._listed("]" if sign == "[" else ")", lambda: self.value(depth + 1))
        if (number := _NUMBER_loose_values.match(self._text, self._place)) is not None:
            self._place = number.end()
            return json.loads(number[0])
        word = _WORD.match(self._text, self._place)
        if word is None or word[0] not in _WORDS:
            raise ValueError("no value")
        self._place = word.end()
        return _WORDS[word[0]]

    def _string(self, size: int) -> str:
        whole = self._text[self._place : self._place + size]
        self._place += size
        if self._quote not in ("", "'", '"'):
            return whole[len(self._quote) : -len(self._quote)]
        return _ESCAPE.sub(_unescaped, whole[1:-1])

    def _listed(self, closing: str, read: Callable[[], T]) -> list[T]:
        """What is between commas; one may stand behind the last."""
        self._place += 1
        found: list[T] = []
        while not self._took(closing):
            if found and not self._took(","):
                raise ValueError("no comma")
            if found and self._took(closing):
                break
            found.append(read())
        return found

    def _entry(self, depth: int) -> tuple[str, Any]:
        key = self._key()
        if not self._took(":"):
            raise ValueError("no colon")
        return key, self.value(depth)

    def _key(self) -> str:
        self._skip()
        size = _string_size(self._text, self._place, self._quote)
        if size > 0:
            return self._string(size)
        end = self._text.find(":", self._place)
        if end <= self._place:
            raise ValueError("no key")
        key, self._place = self._text[self._place : end].strip(), end
        return key

    def _took(self, sign: str) -> bool:
        self._skip()
        is_there = self._text.startswith(sign, self._place)
        self._place += is_there
        return is_there

    def _skip(self) -> None:
        while self._text[self._place : self._place + 1].isspace():
            self._place += 1


def read_elements(text: str, before: str, item: str, schema: Any, root: Any, depth: int = 0) -> Any:
    """The value of nested tags, each with `before` in front of its `<`; entries of a list have the tag `item`."""
    opening = re.compile(re.escape(before) + r"<(\w[^<>\s]*)>")
    schema = resolved(schema, root)
    known = schema if isinstance(schema, Mapping) else {}
    head = opening.match(text.lstrip())
    if head is None or depth > DEEPEST:
        types = types_of(schema, root)
        if not text and types is not None and not types & {"string", "null"}:
            return [] if "array" in types else {}
        return read_value(text, types)
    found: list[tuple[str, Any]] = []
    rest = text.lstrip()
    while (head := opening.match(rest)) is not None:
        inside, rest = _element(rest[head.end() :], head[1], before)
        inner = known.get("items") if head[1] == item else (known.get("properties") or {}).get(head[1])
        found.append((head[1], read_elements(inside, before, item, inner, root, depth + 1)))
    names = [name for name, _ in found]
    if set(names) == {item} and "object" not in (types_of(schema, root) or ()):
        return [value for _, value in found]
    return dict(found)


def _element(text: str, name: str, before: str) -> tuple[str, str]:
    """What is inside an element whose opening tag was read, and what follows it."""
    tags = re.compile(re.escape(before) + rf"<(/?){re.escape(name)}>")
    depth = 1
    for tag in tags.finditer(text):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return text[: tag.start()], text[tag.end() :].lstrip()
    return text, ""


def _strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _unescaped(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is not None:
        number = int(code, 16)
        return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else "\ufffd"
    return _PLAIN_ESCAPES.get(escape[4], escape[4] if escape[4] in "\\'\"/" else "\\" + escape[4])
