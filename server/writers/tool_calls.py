"""Tool calls in the model's text, read as they come. How models write them: `engine/grammar/tool_formats.py`."""

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from engine.grammar.tool_formats import HERMES, TOOL_FORMATS, ToolFormat

MAX_HELD_CHARACTERS = 256 * 1024
MAX_HEAD_CHARACTERS = 1024  # a call that has not begun as usual within these is read as a whole

_HEAD = re.compile(r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)', re.DOTALL)


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


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, object] | None = None
    parameters: dict[str, object] | None = None


def format_of(markers: Mapping[str, tuple[str, str]]) -> ToolFormat | None:
    """The format of calls that a manifest's markers name, None when they name none: the model takes no tools."""
    return TOOL_FORMATS.get(markers.get("tool_call", ("", ""))[0])


class CallSplitter:
    """Splits the text of one choice, piece by piece, into plain text and calls.

    Held back: what may be the beginning of a marker, a call until its name and the begin of its arguments are known,
    and white space, which is dropped when a call follows it or precedes it. A call that does not begin as one comes
    out as the text it is.
    """

    def __init__(self, form: ToolFormat = HERMES) -> None:
        self._form = form
        self._held = ""
        self._block: _Block | None = None
        self._calls = 0
        self._has_said = False
        self._is_after_call = False  # and nothing but white space since

    @property
    def has_calls(self) -> bool:
        """True once a call came out."""
        return self._calls > 0

    def feed(self, text: str, is_last: bool = False) -> list[Piece]:
        """What is certain now, in order; everything when `is_last`."""
        self._held += text
        found: list[Piece] = []
        while (pieces := self._next()) is not None:
            found += pieces
        if is_last:
            found += self._rest()
        return [piece for piece in found if piece]

    def _next(self) -> list[Piece] | None:
        """What comes next, None when more text is needed for it."""
        return self._next_said() if self._block is None else self._next_called(self._block)

    def _next_said(self) -> list[Piece] | None:
        if self._form.is_bare and not self._has_said:
            shown = self._held.lstrip()
            if not shown:
                return None
            if shown[0] == "{":
                self._block = _Block(self._form, "", self._calls)
                self._held = shown
                return []
        start = self._held.find(self._form.opening)
        if start >= 0:
            text, self._held = self._held[:start], self._held[start + len(self._form.opening) :]
            self._block = _Block(self._form, self._form.opening, self._calls)
            return [self._trimmed(text.rstrip())]
        keep = len(self._held) - _uncertain(self._held, self._form.opening)
        text, self._held = self._trimmed(self._held[:keep]), self._held[keep:]
        return [text] if text else None

    def _next_called(self, block: "_Block") -> list[Piece] | None:
        pieces = list(block.feed(self._held))
        self._held = ""
        if any(isinstance(piece, CallBegin) for piece in pieces):
            self._is_after_call = self._has_said = True
        self._calls = block.calls
        if block.rest is None:
            return pieces or None
        self._held, self._block = block.rest, None
        return [self._trimmed(piece) if isinstance(piece, str) else piece for piece in pieces]

    def _rest(self) -> list[Piece]:
        """The end of the text: what is left is no call any more."""
        block, self._block = self._block, None
        text, self._held = self._held, ""
        if block is not None:
            return [self._trimmed(block.unread)]
        return [self._trimmed(text).rstrip() if self.has_calls else text]

    def _trimmed(self, text: str) -> str:
        shown = text.lstrip() if self._is_after_call else text
        self._is_after_call = self._is_after_call and not shown
        self._has_said = self._has_said or bool(shown.strip())
        return shown


class _Block:
    """What follows an opening marker. `rest` is the text behind the block once it has ended; `unread` what is held.

    Until the first call of a block is certain all of it may still turn out to be plain text.
    """

    def __init__(self, form: ToolFormat, opening: str, calls: int) -> None:
        self.calls = calls
        self.rest: str | None = None
        self._form = form
        self._raw = opening  # given out as text if this is no call
        self._text = ""  # not yet read
        self._has_call = False
        self._nesting: _Nesting | None = None  # inside a call whose begin came out
        self._whole, self._read = _Nesting(0), 0  # of a call whose begin did not: characters read so far
        self._is_in_arguments = False
        self._is_refused = False  # no call, and its closing marker has not come yet

    @property
    def unread(self) -> str:
        """What has to be shown as text when nothing follows."""
        return "" if self._has_call else self._raw + self._text

    def feed(self, text: str) -> list[Piece]:
        """Pieces that are certain."""
        self._text += text
        pieces: list[Piece] = []
        while self.rest is None and (found := self._step()) is not None:
            pieces += found
        return pieces

    def _step(self) -> list[Piece] | None:
        """One move, None when more text is needed."""
        if self._nesting is not None:
            return self._inside(self._nesting)
        self._skip(" \t\r\n" + (",[" if self._form.is_list else ";"))
        if not self._text:
            return None
        if self._is_refused:
            return self._refused()
        return self._begin() if self._text[0] == "{" else self._between()

    def _inside(self, nesting: "_Nesting") -> list[Piece] | None:
        """Arguments go out as they come; what follows them in the call is dropped."""
        if not self._text:
            return None
        used, is_done = nesting.feed(self._text, 1 if self._is_in_arguments else 0, self._form.closing[:1])
        part, self._text = self._text[:used], self._text[used:]
        pieces: list[Piece] = [CallArguments(self.calls - 1, part)] if self._is_in_arguments and part else []
        if is_done and self._is_in_arguments and not nesting.is_broken:
            self._is_in_arguments = False
        elif is_done:
            self._nesting = None
        return pieces

    def _begin(self) -> list[Piece] | None:
        """A call: told by its begin, or, with other keys or another order, when it is complete."""
        head = _HEAD.match(self._text, 0, MAX_HEAD_CHARACTERS) if self._read < MAX_HEAD_CHARACTERS else None
        if head is not None:
            name = _decoded(head[1])
            if name is not None:
                self._text = self._text[head.end() :]
                self._nesting, self._is_in_arguments = _Nesting(1), True
                self._whole, self._read = _Nesting(0), 0
                return [self._new_call(name)]
        more, is_done = self._whole.feed(self._text[self._read :], 0, "")
        self._read += more
        if not is_done:
            return self._give_up() if len(self._text) > MAX_HELD_CHARACTERS else None
        used, self._whole, self._read = self._read, _Nesting(0), 0
        call = _parsed(self._text[:used])
        if call is None:
            return self._refused()
        self._text = self._text[used:]
        arguments = call.arguments if call.arguments is not None else call.parameters or {}
        begin = self._new_call(call.name)
        return [begin, CallArguments(begin.index, msgspec.json.encode(arguments).decode())]

    def _between(self) -> list[Piece] | None:
        """Neither a call nor white space: the end of the block, or nonsense."""
        closing = self._form.closing
        if self._form.is_list and self._text[0] == "]" and self._has_call:
            self._text = self._text[1:]
            return [] if closing else self._end()
        if closing and self._has_call:
            place = self._text.find(closing)
            if place < 0:  # nonsense between calls and closing marker is dropped
                self._text = self._text[-len(closing) :]
                return None
            self._text = self._text[place + len(closing) :]
            return self._end()
        return self._end() if self._has_call else self._refused()

    def _refused(self) -> list[Piece] | None:
        """This is no call: the block is text, up to its closing marker if it has one."""
        if self._has_call:
            return self._end()
        closing = self._form.closing
        place = self._text.find(closing)
        self._is_refused = place < 0
        if place < 0:
            return self._give_up() if len(self._text) > MAX_HELD_CHARACTERS else None
        end = place + len(closing) if closing else len(self._text)
        text, self._text = self._raw + self._text[:end], self._text[end:]
        self.rest = self._text
        return [text]

    def _give_up(self) -> list[Piece]:
        text, self.rest = self._raw + self._text, ""
        return [text]

    def _end(self) -> list[Piece]:
        self.rest = self._text
        return []

    def _skip(self, characters: str) -> None:
        shown = self._text.lstrip(characters)
        self._raw += self._text[: len(self._text) - len(shown)]
        self._text = shown

    def _new_call(self, name: str) -> CallBegin:
        self._has_call = True
        self.calls += 1
        return CallBegin(self.calls - 1, f"call_{uuid.uuid4().hex[:24]}", name)


class _Nesting:
    """How deep in brackets a JSON text is, read in pieces. `is_broken`: a character that no JSON has came."""

    def __init__(self, depth: int) -> None:
        self.is_broken = False
        self._depth = depth
        self._is_string = False
        self._is_escaped = False

    def feed(self, text: str, target: int, stop: str) -> tuple[int, bool]:
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
                self.is_broken = True
                return index, True
        return len(text), False


def _decoded(text: str) -> str | None:
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=str)
    except msgspec.MsgspecError:
        return None


def _parsed(text: str) -> _Call | None:
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=_Call)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _uncertain(text: str, opening: str) -> int:
    """Length of the end of `text` that may still turn out to be a marker or white space before one."""
    longest = min(len(text), len(opening) - 1)
    marker = next((size for size in range(longest, 0, -1) if opening.startswith(text[-size:])), 0)
    before = text[: len(text) - marker]
    return marker + len(before) - len(before.rstrip())
