"""One block of tool calls: from what opens it to what closes it."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import msgspec

from engine.bundle.answer_format import ID, TAG, CallFormat, JsonArguments, LiteralArguments, TaggedArguments
from server.generation.argument_readers import NOTHING, ArgumentReader, JsonReader, Nesting, Schema, argument_reader
from server.generation.literals import Found, Unsure, find

MAX_PENDING_CHARACTERS = 256 * 1024
MAX_HEAD_CHARACTERS = 1024  # a call that has not begun as usual within these is read as a whole
MAX_NAME_CHARACTERS = 256
MAX_SHORT_REFUSAL = 4096  # a longer text that is no call is not searched for another


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins. `index` counts the calls of one choice."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the JSON text of a call's arguments."""

    index: int
    text: str


Piece = str | CallBegin | CallArguments


class _State(Enum):
    HEAD = auto()  # up to the arguments
    ARGUMENTS = auto()
    END = auto()  # what ends a call
    BETWEEN = auto()  # another call, or the end of the block


@dataclass(frozen=True, slots=True)
class _Head:
    name: str
    id: str
    end: int  # where the arguments begin


class _JsonFrame:
    """A call that is one JSON object: what is in front of it, its keys, and what is behind it."""

    def __init__(self, form: CallFormat) -> None:
        place = form.begin.rindex("{")
        self.before = form.begin[:place]
        self.after = form.end[form.end.rindex("}") + 1 :]
        whole = f"{form.begin[place:]}NAME{form.named}{{}}{form.end[: form.end.rindex('}') + 1]}"
        keys: dict[str, object] = json.loads(whole)
        self._is_named_by_key = "NAME" in keys
        self._names = [*(key for key, value in keys.items() if value == "NAME"), "name", "tool_name"]
        self._arguments = [*(key for key, value in keys.items() if value == {}), "arguments", "parameters"]

    def parsed(self, text: str) -> tuple[str, dict[str, object]] | None:
        """Name and arguments of a whole call with its keys in any order, None when it is none."""
        call = whole_object(text)
        if call is None:
            return None
        if self._is_named_by_key and len(call) == 1:
            name, arguments = next(iter(call.items()))
        else:
            name = next((found for key in self._names if isinstance(found := call.get(key), str)), "")
            arguments = next((call[key] for key in self._arguments if call.get(key) is not None), {})
        return (name, arguments) if name and isinstance(arguments, dict) else None


def _json_frame(form: CallFormat) -> _JsonFrame | None:
    if not isinstance(form.arguments, JsonArguments) or "{" not in form.begin or "}" not in form.end:
        return None
    try:
        return _JsonFrame(form)
    except ValueError:
        return None


class CallBlock:
    """The calls of one block. `rest`: what follows it, None while it has not ended. `refused`: the text that it is
    instead, where it is no call."""

    def __init__(
        self, form: CallFormat, schemas: Mapping[str, Schema], calls: int, id_chars: int, ids: set[str]
    ) -> None:
        """schemas: of the parameters of functions. calls: of the choice so far. ids: of its calls, added to."""
        self.rest: str | None = None
        self.refused = ""
        self.calls = calls
        self._first = calls
        self._form, self._frame = form, _json_frame(form)
        self._schemas, self._id_chars, self._ids = schemas, id_chars, ids
        self._text = ""
        self._state = _State.HEAD
        self._lead = form.opening  # what is in front of the next call
        self._reader: ArgumentReader = JsonReader()
        self._object = Nesting()  # of a call that is JSON
        self._start, self._read = -1, 0  # of a call that is read as a whole

    def feed(self, text: str, is_last: bool) -> list[Piece]:
        """Pieces that are certain; all when `is_last`, then the block has ended."""
        self._text += text
        pieces: list[Piece] = []
        while self.rest is None:
            try:
                more = self._step(is_last)
            except Unsure:
                more = None
            if more is None:
                break
            pieces += more
        if self.rest is None and (is_last or len(self._text) > MAX_PENDING_CHARACTERS):
            self.refused = "" if self.calls > self._first else self._text
            self.rest = ""
        return pieces

    def _step(self, is_last: bool) -> list[Piece] | None:
        """One move, None when more text is needed. Raises Unsure."""
        match self._state:
            case _State.HEAD:
                return self._head()
            case _State.ARGUMENTS:
                return self._arguments(is_last)
            case _State.END:
                return self._end()
            case _State.BETWEEN:
                return self._between()

    def _head(self) -> list[Piece] | None:
        if self._start >= 0:
            return self._whole()
        try:
            head = self._found_head()
        except Unsure:
            if self._frame is None or len(self._text) < MAX_HEAD_CHARACTERS:
                raise
            head = None
        if head is None:
            return self._unusual()
        is_json = isinstance(self._form.arguments, JsonArguments)
        self._text = self._text[head.end :].lstrip() if is_json else self._text[head.end :]
        self._reader = argument_reader(self._form, self._schemas.get(head.name, NOTHING))
        self._state, self._object = _State.ARGUMENTS, Nesting(1)
        return [self._begun(head.name, head.id)]

    def _found_head(self) -> _Head | None:
        """A call's begin, its name and what follows that, None when something else stands there. Raises Unsure."""
        begin = find(self._lead + self._form.begin, self._text)
        named = None if begin is None else self._named(begin.end)
        if begin is None or named is None:
            return None
        name, behind = named
        decoded = name if self._frame is None else _decoded(name)
        if decoded is None:
            return None
        return _Head(decoded, begin.places.get(ID) or behind.places.get(ID, ""), behind.end)

    def _named(self, start: int) -> tuple[str, Found] | None:
        """The name that begins at `start` and the literal behind it. Raises Unsure."""
        named = self._form.named
        for place in range(start, min(len(self._text), start + MAX_NAME_CHARACTERS)):
            name = self._text[start:place].strip()
            for following in _followers(self._form):
                if name and find(named + following, self._text, place, name) is not None:
                    found = find(named, self._text, place, name)
                    return None if found is None else (name, found)
            if self._frame is not None and self._text[place] == '"' and self._text[place - 1] != "\\":
                return None  # the string has ended
            if name and self._text[place].isspace() and not self._text[place:].isspace():
                return None  # no name has a space in it, and nothing that may follow one stands behind it
        if len(self._text) - start < MAX_NAME_CHARACTERS:
            raise Unsure
        return None

    def _unusual(self) -> list[Piece] | None:
        """A call that is JSON with other keys or another order is read as a whole; anything else is no call."""
        if self._frame is None:
            return self._no_call()
        found = find(self._lead + self._frame.before, self._text)
        if found is None or find("{", self._text, found.end) is None:
            return self._no_call()
        self._start = self._read = self._text.index("{", found.end)
        self._object = Nesting()
        return []

    def _whole(self) -> list[Piece] | None:
        assert self._frame is not None
        more, is_done = self._object.feed(self._text[self._read :], 0)
        self._read += more
        if not is_done:
            return None
        call = self._frame.parsed(self._text[self._start : self._read])
        if call is None:
            return self._no_call()
        name, arguments = call
        self._text, self._start = self._text[self._read :], -1
        self._state, self._object = _State.END, Nesting()
        begin = self._begun(name, "")
        return [begin, CallArguments(begin.index, msgspec.json.encode(arguments).decode())]

    def _no_call(self) -> list[Piece]:
        """This is text, of which the begin is not looked at again."""
        if self.calls > self._first:
            self.rest = self._text
            return []
        size = 1 if len(self._text) < MAX_SHORT_REFUSAL else len(self._text)
        self.refused, self.rest = self._text[:size], self._text[size:]
        return []

    def _arguments(self, is_last: bool) -> list[Piece] | None:
        before = self._text
        read = self._reader.read(self._text, is_last)
        self._text = read.rest
        if read.is_done:
            self._state = _State.END
        pieces: list[Piece] = [CallArguments(self.calls - 1, read.json)] if read.json else []
        return pieces if pieces or read.is_done or before != self._text else None

    def _end(self) -> list[Piece] | None:
        """What ends a call; other things in front of it are dropped."""
        end = self._form.end
        if self._frame is not None:
            if self._object.is_open:
                used, is_done = self._object.feed(self._text, 0, "<")
                self._text = self._text[used:]
                if not is_done:
                    return None
                self._object = Nesting()
            end = self._frame.after
        return self._passed(end, _State.BETWEEN)

    def _passed(self, literal: str, state: _State | None) -> list[Piece] | None:
        """Go behind a literal, dropping what is in front of it. state: the next one, None = the block has ended."""
        if literal.strip():
            found = find(literal, self._text)
            if found is None:
                core = literal.strip()
                place = self._text.find(core)
                if place < 0:
                    self._text = self._text[-len(core) :]
                    raise Unsure
                self._text = self._text[place + len(core) :]
            else:
                self._text = self._text[found.end :]
        if state is None:
            self.rest = self._text
        else:
            self._state = state
        return []

    def _between(self) -> list[Piece] | None:
        """Another call, or what closes the block."""
        form, frame = self._form, self._frame
        between = ";" if form.between is None else form.between
        begin = form.begin if frame is None else frame.before + "{"
        if not (form.closing + between + form.opening).strip():
            self.rest = self._text
            return []
        is_unsure = False
        for literal, skipped in ((form.closing, None), (between + begin, between), (begin, "")):
            try:
                if not literal.strip() or find(literal, self._text) is None:
                    continue
            except Unsure:
                is_unsure = True
                continue
            if skipped is None:
                return self._passed(literal, None)
            found = find(skipped, self._text)
            self._text = self._text[0 if found is None else found.end :]
            self._state, self._lead = _State.HEAD, ""
            return []
        if is_unsure:
            raise Unsure
        if TAG.search(form.closing) is not None:  # it can be told from text wherever it stands
            return self._passed(form.closing, None)
        self.rest = self._text
        return []

    def _begun(self, name: str, identifier: str) -> CallBegin:
        self.calls += 1
        if not identifier or identifier in self._ids:
            number = uuid.uuid4().hex
            identifier = number[: self._id_chars] if self._id_chars else f"call_{number[:24]}"
        self._ids.add(identifier)
        return CallBegin(self.calls - 1, identifier, name)


def _followers(form: CallFormat) -> tuple[str, ...]:
    """What may follow a call's name and `named`."""
    match form.arguments:
        case JsonArguments():
            return ("{",)
        case TaggedArguments(before=before):
            return (before, form.end)
        case LiteralArguments():
            return ("",)


def whole_object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is, None when it is none: cut, or wrong."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return None


def _decoded(text: str) -> str | None:
    try:
        return msgspec.json.decode(f'"{text}"'.encode("utf-8", "replace"), type=str)
    except msgspec.MsgspecError:
        return None
