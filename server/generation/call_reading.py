"""Tool calls read out of a text that grows, by the description of how the model writes them (`CallFormat`).

A block of calls is read from what opens it to what closes it; what a model drops or adds around a call is passed over.
"""

import json
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from engine.bundle.answer_format import ID, TAG, CallFormat, JsonArguments, LiteralArguments, TaggedArguments
from server.generation.argument_reading import ArgumentReader, CallArguments, Schema
from server.generation.growing_text import Found, GrowingText, find, whole_object

MAX_NAME_CHARACTERS = 256


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins. `index` counts the calls of one choice."""

    index: int
    id: str
    name: str


T = TypeVar("T")
Steps = Generator[CallBegin | CallArguments | None, None, T]


class _JsonFrame:
    """A call that is one JSON object: what is in front of it, its keys, and what is behind it."""

    def __init__(self, form: CallFormat) -> None:
        """Raises ValueError where a call is no JSON object."""
        if not isinstance(form.arguments, JsonArguments):
            raise ValueError("other arguments")
        place, end = form.begin.rindex("{"), form.end.rindex("}") + 1
        self.before, self.after = form.begin[:place], form.end[end:]
        self.is_bare = not (form.opening + self.before).strip()  # any answer in JSON begins like that
        keys = json.loads(f"{form.begin[place:]}NAME{form.named}{{}}{form.end[:end]}")
        self.is_named_by_key = "NAME" in keys
        self.names = {"name", "tool_name", *(key for key, value in keys.items() if value == "NAME")}
        self.arguments = {"arguments", "parameters", *(key for key, value in keys.items() if value == {})}
        self.ids = {key for key, value in keys.items() if value == ID}


class CallReader:
    """Reads the calls of one choice. `calls`: how many there were. Its generators raise Ended when the text does."""

    def __init__(self, source: GrowingText, schemas: Mapping[str, Schema], id_chars: int) -> None:
        """schemas: of the parameters of all functions, by name. id_chars: the length of ids, 0 = any."""
        self.calls = 0
        self._source, self._schemas, self._id_chars = source, schemas, id_chars
        self._ids: set[str] = set()

    def block(self, form: CallFormat) -> Steps[None]:
        """All calls of a block. Nothing is taken of the text when it does not begin with a call."""
        try:
            frame = _JsonFrame(form)
        except ValueError:
            frame = None
        lead = form.opening
        while True:
            if frame is not None:
                is_call = yield from self._object(lead, frame)
            else:
                is_call = yield from self._call(lead, form)
            if not is_call:
                return
            yield from self._past(form.end if frame is None else frame.after)
            if not (yield from self._another(form, form.begin if frame is None else frame.before + "{")):
                return
            lead = ""

    def _is_name(self, name: str, frame: _JsonFrame) -> bool:
        return name in self._schemas if frame.is_bare else bool(name)

    def _begun(self, name: str, identifier: str, end: int) -> CallBegin:
        self._source.text = self._source.text[end:]
        self.calls += 1
        if not identifier or identifier in self._ids:
            number = uuid.uuid4().hex
            identifier = number[: self._id_chars] if self._id_chars else f"call_{number[:24]}"
        self._ids.add(identifier)
        return CallBegin(self.calls - 1, identifier, name)

    def _past(self, literal: str) -> Steps[None]:
        """Go behind a literal, dropping what is in front of it."""
        core, source = literal.strip(), self._source
        if not core:
            return
        found = yield from source.at(literal)
        if found is not None:
            source.text = source.text[found.end :]
            return
        while (place := source.text.find(core)) < 0:
            source.text = source.text[-len(core) :]
            yield from source.more()
        source.text = source.text[place + len(core) :]

    def _another(self, form: CallFormat, begin: str) -> Steps[bool]:
        """Whether another call follows; else the block is left."""
        source = self._source
        between = ";" if form.between is None else form.between
        if not (form.closing + between + form.opening).strip():
            return False
        following = [text for text in (form.closing, between + begin, begin) if text.strip()]
        found = yield from source.first(following)
        if found is not None:
            is_over = found == form.closing
            taken = find(found if is_over else found.removesuffix(begin), source.text)
            source.text = source.text[0 if taken is None else taken.end :]
            return not is_over
        if TAG.search(form.closing) is not None:  # it can be told from text wherever it stands
            yield from self._past(form.closing)
        return False

    def _object(self, lead: str, frame: _JsonFrame) -> Steps[bool]:
        """A call that is one JSON object. Its arguments go out as they come once the name is known."""
        source, reader = self._source, ArgumentReader(self._source, self.calls)
        found = yield from source.at(lead + frame.before + "{")
        if found is None:
            return False
        place, name, identifier, arguments = found.end, "", "", "{}"
        while True:
            place = yield from source.solid(place)
            sign = source.text[place]
            if sign == ",":
                place += 1
                continue
            if sign in "}<":
                if not self._is_name(name, frame) or whole_object(source.text[found.end - 1 : place + 1]) is None:
                    return False
                yield self._begun(name, identifier, place + 1)
                yield CallArguments(self.calls - 1, arguments)
                return True
            end = yield from reader.json_end(place)
            key = _string(source.text[place:end])
            place = yield from source.solid(end)
            if not key or source.text[place] != ":":
                return False
            start = yield from source.solid(place + 1)
            is_object, is_given = source.text[start] == "{", key in frame.arguments
            if is_object and frame.is_named_by_key and not name:
                name, is_given = key, True
            if is_object and is_given and self._is_name(name, frame):
                yield self._begun(name, identifier, start)
                yield from reader.json()
                yield from reader.json(depth=1, copies=False)
                return True
            place = yield from reader.json_end(start)
            value = source.text[start:place]
            if key in frame.names:
                name = name or _string(value) or ""
            elif key in frame.ids:
                identifier = _string(value) or ""
            elif is_given and is_object:
                arguments = value
            elif is_given and value != "null":
                return False

    def _call(self, lead: str, form: CallFormat) -> Steps[bool]:
        """A call in which a literal is in front of its name, and one behind it."""
        source = self._source
        begin = yield from source.at(lead + form.begin)
        named = None if begin is None else (yield from self._named(begin.end, form))
        if begin is None or named is None:
            return False
        name, behind = named
        yield self._begun(name, begin.id or behind.id, behind.end)
        reader = ArgumentReader(source, self.calls - 1)
        match form.arguments:
            case JsonArguments():
                yield from source.skip()
                yield from reader.json()
            case TaggedArguments() as tagged:
                yield from reader.tagged(tagged, form.end, self._schemas.get(name, {}))
            case LiteralArguments() as literals:
                yield from reader.literals(literals, form)
        return True

    def _named(self, start: int, form: CallFormat) -> Steps[tuple[str, Found] | None]:
        """The name that begins at `start` and the literal behind it, None when it is none."""
        match form.arguments:
            case JsonArguments():
                behind = ["{"]
            case TaggedArguments(before=before):
                behind = [before, form.end]
            case LiteralArguments():
                behind = [""]
        following = [form.named + text for text in behind]
        for place in range(start, start + MAX_NAME_CHARACTERS):
            yield from self._source.sign(place)
            name = self._source.text[start:place].strip()
            if any(map(str.isspace, name)):
                return None
            if name and (yield from self._source.first(following, place, name)) is not None:
                found = find(form.named, self._source.text, place, name)
                return None if found is None else (name, found)
        return None


def _string(text: str) -> str | None:
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=str)
    except msgspec.MsgspecError:
        return None
