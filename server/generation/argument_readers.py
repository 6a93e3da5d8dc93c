"""The arguments of a call as they come, made into the text of one JSON object."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.bundle.answer_format import KEY, CallFormat, JsonArguments, LiteralArguments, TaggedArguments
from engine.grammar.spec import Types, types_of
from server.generation.literals import (
    LiteralScanner,
    Unsure,
    as_json,
    find,
    read_elements,
    read_literal,
    read_value,
    uncertain,
)

Schema = Mapping[str, Any]
MAX_KEY_CHARACTERS = 512
NOTHING: Schema = {}
_KEY = re.compile(r"\s*[\w-]*")


@dataclass(frozen=True, slots=True)
class Read:
    """What a reader made of a text: JSON text, what it has not read, and whether the arguments are complete."""

    json: str
    rest: str
    is_done: bool = False


def argument_reader(form: CallFormat, schema: Schema) -> "ArgumentReader":
    """A reader for the arguments of one call. schema: of the function's parameters."""
    match form.arguments:
        case JsonArguments():
            return JsonReader()
        case TaggedArguments():
            return TaggedReader(form.arguments, form.end, schema)
        case LiteralArguments():
            return LiteralReader(form.arguments, form)


class Nesting:
    """How deep in brackets a JSON text is, read in pieces."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._is_string = False
        self._is_escaped = False

    @property
    def is_open(self) -> bool:
        """Inside of a bracket."""
        return self._depth > 0

    def feed(self, text: str, target: int, stop: str = "") -> tuple[int, bool]:
        """Characters read, and whether the depth came down to `target` with the last one, or `stop` came before it."""
        for index, character in enumerate(text):
            if self._is_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._is_string = False
            elif character == '"':
                self._is_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= target:
                    return index + 1, True
            elif character == stop:
                return index, True
        return len(text), False


class JsonReader:
    """An object that is JSON already goes out as it comes."""

    def __init__(self) -> None:
        self._nesting = Nesting()

    def read(self, text: str, is_last: bool) -> Read:
        """All of it, up to the end of the object."""
        used, is_done = self._nesting.feed(text, 0, "<")
        return Read(text[:used], text[used:], is_done)


class _ValueReader(ABC):
    """Makes an object entry by entry. A value ends at what closes it, once what can only stand behind one follows."""

    _seen = 0  # characters of the value in which it does not end
    _entries = 0

    def _entry(self, key: str) -> str:
        """JSON in front of the value of `key`."""
        self._entries += 1
        return f"{'{' if self._entries == 1 else ', '}{as_json(key)}: "

    def _end_of_entries(self) -> str:
        return "}" if self._entries else "{}"

    @abstractmethod
    def _goes_on(self, text: str, place: int) -> bool:
        """Whether another argument or the end of the call follows. Raises Unsure."""

    def _closing_place(self, text: str, closing: str, is_last: bool) -> int:
        """Where what closes the value begins, -1 when that is not known yet."""
        while (place := text.find(closing, self._seen)) >= 0:
            try:
                if self._goes_on(text, place + len(closing)):
                    return place
            except Unsure:
                return place if is_last else -1
            self._seen = place + 1
        self._seen = max(self._seen, len(text) - len(closing) + 1)
        return -1


class LiteralReader(_ValueReader):
    """Keys and literals: an argument goes out when it is complete."""

    def __init__(self, form: LiteralArguments, call: CallFormat) -> None:
        self._form = form
        self._closing = call.end.strip()[:1]
        self._ends = tuple(call.end + behind for behind in (call.closing, call.between or call.closing))
        self._scanner: LiteralScanner | None = None

    def read(self, text: str, is_last: bool) -> Read:
        """Every argument whose end is there."""
        made = ""
        while True:
            text = text.lstrip(" \t\r\n" if self._scanner is not None else " \t\r\n,")
            if self._scanner is None and text[:1] == self._closing:
                return Read(made + self._end_of_entries(), text, is_done=True)
            if self._scanner is None:
                key, found, behind = text.partition(self._form.assign)
                if not found:
                    return Read(made, text, is_done=len(text) > MAX_KEY_CHARACTERS)
                made += self._entry(key.strip().strip("'\""))
                self._scanner, self._seen = LiteralScanner(self._form.quote, "," + self._closing), 1
                text = behind.lstrip()
            end = self._end(text, self._scanner, is_last)
            if end < 0:
                return Read(made, text)
            made, text, self._scanner = made + self._value(text[:end]), text[end:], None

    def _end(self, text: str, scanner: LiteralScanner, is_last: bool) -> int:
        """Where the value ends, -1 when that is not known yet."""
        quote = text[:1]
        if not self._form.is_raw or quote not in ("'", '"'):
            return scanner.end(text) if text else -1
        place = self._closing_place(text, quote, is_last)
        return place + 1 if place >= 0 else -1

    def _goes_on(self, text: str, place: int) -> bool:
        """Whether another argument or the end of the call follows. Raises Unsure."""

        def is_key(end: int) -> bool:
            key = _KEY.match(text, end)
            if key is None or key.end() == len(text):
                raise Unsure
            return text.startswith(self._form.assign, key.end())

        return _follows(text, place, self._form.between, is_key, self._ends)

    def _value(self, text: str) -> str:
        if self._form.is_raw and text[:1] in ("'", '"'):
            return as_json(text[1:-1])
        try:
            return as_json(read_literal(text, self._form.quote))
        except (ValueError, RecursionError):
            return as_json(text.strip())


class TaggedReader(_ValueReader):
    """One argument after the other. A string goes out as it comes, another value when it is complete.

    A value ends where what closes it is followed by another argument or by the end of the call: the closing tag alone
    may be part of a string.
    """

    def __init__(self, form: TaggedArguments, end: str, schema: Schema) -> None:
        self._form, self._schema = form, schema
        spaces = form.after[len(form.after.rstrip()) :]
        self._end = spaces + end
        self._assigns = sorted(set(form.assign.values()), key=len, reverse=True)
        self._string = form.assign.get("string", "")
        self._key: str | None = None
        self._types: Types | None = None
        self._is_begun = False  # a string went out in part

    def read(self, text: str, is_last: bool) -> Read:
        """What is certain of keys and values."""
        made = ""
        while True:
            try:
                if self._key is None:
                    found = self._next_key(text)
                    if found is None:
                        return Read(made + self._end_of_entries(), text, is_done=True)
                    more, text = found
                else:
                    more, text, is_complete = self._value(self._key, text, is_last)
                    if not is_complete:
                        return Read(made + more, text)
                made += more
            except Unsure:
                if is_last and self._key is None:
                    return Read(made + self._end_of_entries(), text, is_done=True)
                return Read(made, text)

    def _next_key(self, text: str) -> tuple[str, str] | None:
        """The key's JSON and what follows it; None at the end of the arguments."""
        head = find(self._form.before, text)
        if head is None or text.startswith("/", head.end):  # a closing tag, where tags have keys as names
            return None
        for place in range(head.end, min(len(text), head.end + MAX_KEY_CHARACTERS)):
            assign = self._assign(text, place)
            if assign is None:
                continue
            literal, end = assign
            self._key = text[head.end : place].strip()
            self._types = self._types_of(self._key, literal)
            self._is_begun, self._seen = False, 0
            spaces = literal[len(literal.rstrip()) :]
            if spaces and spaces.startswith(text[end:]) and len(text) - end < len(spaces):
                self._key = None
                raise Unsure
            return self._entry(self._key), text[end + (len(spaces) if text.startswith(spaces, end) else 0) :]
        if len(text) < head.end + MAX_KEY_CHARACTERS:
            raise Unsure
        return None

    def _assign(self, text: str, place: int) -> tuple[str, int] | None:
        for literal in self._assigns:
            found = find(literal, text, place)
            if found is not None:
                return literal, found.end
        return None

    def _types_of(self, key: str, assign: str) -> Types | None:
        """The types of a value by the tool's schema, and by how it is written where that says it."""
        types = types_of(self._schema_of(key), self._schema)
        if len(self._assigns) == 1:
            return types
        told = frozenset(kind for kind, literal in self._form.assign.items() if literal == assign)
        return told if "string" in told or types is None else types - {"string"} or told

    def _value(self, key: str, text: str, is_last: bool) -> tuple[str, str, bool]:
        """JSON of a value, what follows it, and whether it was complete."""
        wrap = self._form.wrap
        is_wrapped = wrap is not None and text.startswith(wrap.opening)
        if wrap is not None and not is_wrapped and wrap.opening.startswith(text) and not is_last:
            return "", text, False
        closing = self._form.after.rstrip()
        if wrap is not None and is_wrapped:
            closing = wrap.closing + closing.lstrip()
        core = closing.strip().replace(KEY, key)
        place = self._closing_place(text, core, is_last)
        is_text = self._types == frozenset(("string",)) and wrap is None
        if place < 0:
            return self._part(text, core) if is_text else ("", text, False)
        value, behind = text[:place], text[place + len(core) :]
        value = value.removesuffix(closing[: len(closing) - len(closing.lstrip())])
        if wrap is not None and is_wrapped:
            made = as_json(value.removeprefix(wrap.opening))
        elif is_text:
            made = ("" if self._is_begun else '"') + as_json(value)[1:]
        else:
            made = as_json(self._converted(key, value))
        self._key = None
        return made, behind, True

    def _goes_on(self, text: str, place: int) -> bool:
        """Whether another argument or the end of the call follows a value. Raises Unsure."""

        def is_opening(end: int) -> bool:
            if end == len(text):
                raise Unsure
            return text[end] != "/"  # a closing tag, where tags have keys as names

        return _follows(text, place, self._form.before, is_opening, (self._end,))

    def _part(self, text: str, core: str) -> tuple[str, str, bool]:
        """The part of a string that is certain. core: what closes it."""
        place = text.find(core, self._seen)
        keep = len(text[:place].rstrip()) if place >= 0 else len(text) - uncertain(text, (core,))
        if not keep:
            return "", text, False
        made = ("" if self._is_begun else '"') + as_json(text[:keep])[1:-1]
        self._is_begun, self._seen = True, max(0, self._seen - keep)
        return made, text[keep:], False

    def _converted(self, key: str, value: str) -> Any:
        if not self._form.item:
            return read_value(value, self._types)
        before = self._form.before.removesuffix("<")
        return read_elements(value, before, self._form.item, self._schema_of(key), self._schema)

    def _schema_of(self, key: str) -> Any:
        properties = self._schema.get("properties")
        return properties.get(key, NOTHING) if isinstance(properties, Mapping) else NOTHING


def _follows(text: str, place: int, next_: str, is_next: Callable[[int], bool], ends: Sequence[str]) -> bool:
    """Whether one of `ends` stands at `place`, or `next_` with what `is_next` accepts behind it. Raises Unsure."""
    unsure = False
    for literal in (next_, *ends):
        try:
            found = find(literal, text, place)
            if found is not None and (literal is not next_ or is_next(found.end)):
                return True
        except Unsure:
            unsure = True
    if unsure:
        raise Unsure
    return False


ArgumentReader = JsonReader | LiteralReader | TaggedReader
