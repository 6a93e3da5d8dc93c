"""The arguments of one call, read out of a text that grows and made into the text of one JSON object."""

import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.bundle.answer_format import KEY, CallFormat, LiteralArguments, TaggedArguments
from engine.grammar.spec import Types, types_of
from server.generation import growing_text
from server.generation.growing_text import PYTHON_QUOTES, Ended, GrowingText, Unsure, as_json, end_of, first_of

Schema = Mapping[str, Any]
MAX_KEY_CHARACTERS = 512
_STRING = frozenset(("string",))
_PLAIN_JSON = re.compile(r'[^"{}\[\]<]*')
_INSIDE = {mark: re.compile(rf"[^{mark}\\]*(?:\\.[^{mark}\\]*)*", re.DOTALL) for mark in PYTHON_QUOTES}
_SCALAR = re.compile(r"[^\s,:{}\[\]\"]*")


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments. `index` counts the calls of one choice."""

    index: int
    text: str


T = TypeVar("T")
Steps = Generator[CallArguments | None, None, T]


class ArgumentReader:
    """Reads the arguments of call `index`. Its generators raise Ended when the text does.
    A value ends where what closes it is followed by another argument or by the end of the call: what closes it alone
    may be part of a string."""

    def __init__(self, source: GrowingText, index: int) -> None:
        self._source, self._index = source, index
        self._entries = 0

    def json(self, depth: int = 0, copies: bool = True) -> Steps[None]:
        """Go behind a JSON value. depth: of its brackets that are open already."""
        end = yield from self.json_end(0, depth, copies)
        if copies and end:
            yield self._given(self._source.text[:end])
        self._source.text = self._source.text[end:]

    def json_end(self, place: int, depth: int = 0, copies: bool = False) -> Steps[int]:
        """Where the JSON value at a place ends, or a `<` outside of its strings. copies: it goes out, and is taken."""
        source = self._source
        if not depth and (yield from source.sign(place)) not in '"{[':
            while (end := end_of(_SCALAR, source.text, place)) == len(source.text):
                yield from source.more()
            return end
        while True:
            place = end_of(_PLAIN_JSON, source.text, place)
            if place == len(source.text):
                place = yield from self._more(place, copies)
                continue
            sign = source.text[place]
            if sign == "<":
                return place
            if sign == '"':
                place = yield from self._string_end(place + 1, sign, copies)
            else:
                place, depth = place + 1, depth + (1 if sign in "{[" else -1)
            if depth <= 0:
                return place

    def tagged(self, form: TaggedArguments, end: str, schema: Schema) -> Steps[None]:
        """One argument after the other: a string goes out as it comes, another value when it is complete.
        end: of the call. schema: of the function's parameters."""
        while True:
            try:
                found = yield from self._tagged_key(form)
            except Ended:
                found = None
            if found is None:
                break
            key, assign = found
            yield self._entry(key)
            yield from self._tagged_value(form, end, key, _types(form, key, assign, schema), schema)
        yield self._end_of_entries()

    def literals(self, form: LiteralArguments, call: CallFormat) -> Steps[None]:
        """Keys and literals: an argument goes out when it is complete."""
        source, closing = self._source, call.end.strip()[:1]
        ends = (call.end + call.closing, call.end + (call.between or call.closing))
        while True:
            yield from source.skip(",")
            if source.text[0] == closing:
                break
            while form.assign not in source.text and len(source.text) <= MAX_KEY_CHARACTERS:
                yield from source.more()
            key, found, behind = source.text.partition(form.assign)
            if not found:
                break
            yield self._entry(key.strip().strip("'\""))
            source.text = behind
            yield from source.skip()
            if form.is_raw and source.text[0] in PYTHON_QUOTES:
                end = 1 + (yield from self._closed(source.text[0], (form.between + KEY + form.assign, *ends), seen=1))
                value: Any = source.text[1 : end - 1]
            else:
                end = yield from self._literal_end(form.quote, "," + closing)
                try:
                    value = growing_text.read_literal(source.text[:end], form.quote)
                except (ValueError, RecursionError):
                    value = source.text[:end].strip()
            source.text = source.text[end:]
            yield self._given(as_json(value))
        yield self._end_of_entries()

    def _given(self, text: str) -> CallArguments:
        return CallArguments(self._index, text)

    def _entry(self, key: str) -> CallArguments:
        self._entries += 1
        return self._given(f"{'{' if self._entries == 1 else ', '}{as_json(key)}: ")

    def _end_of_entries(self) -> CallArguments:
        return self._given("}" if self._entries else "{}")

    def _more(self, place: int, copies: bool) -> Steps[int]:
        """Wait for more text, once what is in front of `place` went out if it is copied. Returns the place then."""
        source = self._source
        if copies and place:
            yield self._given(source.text[:place])
            source.text, place = source.text[place:], 0
        yield from source.more()
        return place

    def _string_end(self, place: int, mark: str, copies: bool = False) -> Steps[int]:
        """Behind the mark that ends a string; one of Python and JSON has escapes."""
        source = self._source
        while True:
            if mark in _INSIDE:
                place = end_of(_INSIDE[mark], source.text, place)
            else:
                found = source.text.find(mark, place)
                place = found if found >= 0 else max(place, len(source.text) - len(mark) + 1)
            if source.text.startswith(mark, place):
                return place + len(mark)
            place = yield from self._more(place, copies)

    def _tagged_key(self, form: TaggedArguments) -> Steps[tuple[str, str] | None]:
        """The next key and what assigns its value, None at the end of the arguments."""
        source = self._source
        head = yield from source.at(form.before)
        if head is None or (yield from source.sign(head.end)) == "/":  # a closing tag, where tags have keys as names
            return None
        assigns = sorted(set(form.assign.values()), key=len, reverse=True)
        for place in range(head.end, head.end + MAX_KEY_CHARACTERS):
            for assign in assigns:
                found = yield from source.at(assign, place)
                if found is not None:
                    key = source.text[head.end : place].strip()
                    source.text = source.text[found.end :]
                    spaces = assign[len(assign.rstrip()) :]
                    if (yield from source.begins(spaces)):
                        source.text = source.text[len(spaces) :]
                    return key, assign
        return None

    def _tagged_value(
        self, form: TaggedArguments, end: str, key: str, types: Types | None, schema: Schema
    ) -> Steps[None]:
        source, wrap = self._source, form.wrap
        after = form.after.rstrip().replace(KEY, key)
        prefix = ""
        if wrap is not None and (yield from source.begins(wrap.opening)):
            prefix, after = wrap.opening, wrap.closing + after.lstrip()
        closing = after.lstrip()
        is_text = wrap is None and types == _STRING
        if is_text:
            yield self._given('"')
        place = yield from self._closed(closing, (form.before + KEY, end), is_text)
        value = source.text[len(prefix) : place].removesuffix(after[: len(after) - len(closing)])
        source.text = source.text[place + len(closing) :]
        if is_text:
            yield self._given(as_json(value)[1:])
        elif prefix:
            yield self._given(as_json(value))
        elif form.item:
            before = form.before.removesuffix("<")
            own = _schema_of(key, schema)
            yield self._given(as_json(growing_text.read_elements(value, before, form.item, own, schema)))
        else:
            yield self._given(as_json(growing_text.read_value(value, types)))

    def _closed(self, closing: str, following: Sequence[str], is_text: bool = False, seen: int = 0) -> Steps[int]:
        """Where what closes a value begins, with one of `following` behind it. is_text: what is certain goes out."""
        source = self._source
        while True:
            place = source.text.find(closing, seen)
            if place >= 0:
                keep = len(source.text[:place].rstrip())
                try:
                    if first_of(following, source.text, place + len(closing)) is not None:
                        return place
                    seen = place + 1
                    continue
                except Unsure:
                    if source.is_last:
                        return place
            else:
                keep = len(source.text) - growing_text.uncertain(source.text, (closing,))
                seen = max(seen, len(source.text) - len(closing) + 1)
            if is_text and keep:
                yield self._given(as_json(source.text[:keep])[1:-1])
                source.text, seen = source.text[keep:], max(0, seen - keep)
            yield from source.more()

    def _literal_end(self, quote: str, ends: str) -> Steps[int]:
        """Where a literal ends: at one of the characters `ends`, outside of its brackets."""
        source, place, depth = self._source, 0, 0
        marks = PYTHON_QUOTES if quote in ("", *PYTHON_QUOTES) else (quote,)
        while True:
            rest = source.text[place : place + max(map(len, marks))]
            mark = next((mark for mark in marks if rest.startswith(mark)), "")
            if mark:
                place = yield from self._string_end(place + len(mark), mark)
            elif any(mark.startswith(rest) for mark in marks):
                yield from source.more()
            elif depth == 0 and rest[0] in ends:
                return place
            else:
                depth += (rest[0] in "([{") - (rest[0] in ")]}")
                place += 1


def _types(form: TaggedArguments, key: str, assign: str, schema: Schema) -> Types | None:
    """The types of a value by the tool's schema, and by how it is written where that says it."""
    types = types_of(_schema_of(key, schema), schema)
    if len(set(form.assign.values())) == 1:
        return types
    told = frozenset(kind for kind, literal in form.assign.items() if literal == assign)
    return told if "string" in told or types is None else types - _STRING or told


def _schema_of(key: str, schema: Schema) -> Any:
    properties = schema.get("properties")
    return properties.get(key, {}) if isinstance(properties, Mapping) else {}
