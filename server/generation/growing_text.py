"""Text that comes in pieces, the texts of a call's frame found in it, and values that a model wrote in some notation.

What reads it is a generator: it yields what it has found, and None where it needs more text.
"""

import json
import re
import string
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec

from engine.bundle.answer_format import ID, KEY, NAME, NUMBER
from engine.grammar.spec import Types, allows, resolved, types_of

DEEPEST = 64
PYTHON_QUOTES = ("'", '"')
PLAIN_QUOTES = ("", *PYTHON_QUOTES)  # of literals with escapes
_WORDS = {"True": "true", "False": "false", "None": "null", "(": "[", ")": "]"}
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_PLAIN_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}


def whole_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, None when it is none: cut, or wrong."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()


def read_value(text: str, types: Types | None) -> Any:
    """The value of a text that is JSON or a literal of Python of one of these types, else the text itself."""
    if types == frozenset(("string",)):
        return text
    for read in (_strict_json, read_literal):
        with suppress(ValueError, RecursionError):
            value = read(text.strip())
            if allows(types, value):
                return value
    return text


def read_literal(text: str, quote: str = "") -> Any:
    """The value of a literal; strings are in `quote`, without escapes, or in Python's. ValueError for anything else."""

    def rewritten(token: re.Match[str]) -> str:
        if (inside := token["string"]) is not None:
            return as_json(inside[len(quote) : -len(quote)] if quote not in PLAIN_QUOTES else _unescaped(inside[1:-1]))
        if token["key"] is not None:
            return as_json(token["key"])
        return "" if token[0] == "," else _WORDS[token[0]]

    return _strict_json(_tokens(quote).sub(rewritten, text))


@lru_cache
def _tokens(quote: str) -> re.Pattern[str]:
    """What literals have and JSON has not: strings, keys without quotes, words, tuples, a comma behind the last."""
    own = re.escape(quote)
    string = f"{own}.*?{own}" if quote not in PLAIN_QUOTES else r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
    key = r"""(?<=[{,\s])[^\s"'()\[\]{},:](?:[^"'()\[\]{},:]*[^\s"'()\[\]{},:])?(?=\s*:)"""
    return re.compile(rf"(?P<string>{string})|(?P<key>{key})|\b(?:True|False|None)\b|[()]|,(?=\s*[)\]}}])", re.DOTALL)


def _unescaped(text: str) -> str:
    """Two escapes of UTF-16 are one character, as in JSON; one alone is none."""
    return _ESCAPE.sub(_character, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    if code is not None:
        number = int(code, 16)
        return chr(number) if number < 0x110000 else "\ufffd"
    return _PLAIN_ESCAPES.get(escape[4], escape[4] if escape[4] in "\\'\"/" else "\\" + escape[4])


def _strict_json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def read_elements(text: str, before: str, item: str, schema: Any, root: Any, depth: int = 0) -> Any:
    """The value of nested tags, each with `before` in front of its `<`; entries of a list have the tag `item`."""
    opening = re.compile(re.escape(before) + r"<(\w[^<>\s]*)>")
    schema = resolved(schema, root)
    known: Mapping[str, Any] = schema if isinstance(schema, Mapping) else {}
    types = types_of(schema, root)
    rest = text.lstrip()
    if opening.match(rest) is None or depth > DEEPEST:
        if not text and types is not None and not types & {"string", "null"}:
            return [] if "array" in types else {}
        return read_value(text, types)
    found: list[tuple[str, Any]] = []
    while (head := opening.match(rest)) is not None:
        inside, rest = _element(rest[head.end() :], head[1], before)
        inner = known.get("items") if head[1] == item else (known.get("properties") or {}).get(head[1])
        found.append((head[1], read_elements(inside, before, item, inner, root, depth + 1)))
    if {name for name, _ in found} == {item} and "object" not in (types or ()):
        return [value for _, value in found]
    return dict(found)


def _element(text: str, name: str, before: str) -> tuple[str, str]:
    depth = 1
    for tag in re.finditer(re.escape(before) + rf"<(/?){re.escape(name)}>", text):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return text[: tag.start()], text[tag.end() :].lstrip()
    return text, ""


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
    """`text` is what has not been read yet; nothing follows it where `is_last`. Generators raise Ended."""

    def __init__(self) -> None:
        self.text = ""
        self.is_last = False

    def more(self) -> Wait:
        if self.is_last or len(self.text) > MAX_PENDING_CHARACTERS:
            raise Ended
        yield None

    def sign(self, place: int) -> Generator[None, None, str]:
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
        while True:
            try:
                return find(literal, self.text, start, name)
            except Unsure:
                yield from self.more()

    def first(self, literals: Sequence[str], start: int = 0, name: str = "") -> Generator[None, None, str | None]:
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
    literal's end is not taken."""
    identifier = ""
    for place in _PLACES.split(literal):
        if (written := _WRITTEN.get(place)) is not None and not (place == KEY and name):
            start = _behind_space(text, start)
            end = end_of(written, text, start)
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


def end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()


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
