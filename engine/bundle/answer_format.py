"""How a model writes its answer: its reasoning, its text and its tool calls. Read off its chat template, kept in the
manifest; the grammar that forces calls and the parser that reads them follow it alike. Texts may hold places: `NAME`,
`ID`, `NUMBER` and `KEY` stand for what differs from call to call."""

import re
from itertools import chain
from typing import Annotated

import msgspec
from msgspec import Meta

NAME, ID, NUMBER, KEY = "⟨name⟩", "⟨id⟩", "⟨number⟩", "⟨key⟩"

TAG = re.compile(r"<[^<>\s][^<>\n]{0,60}>|\[/?[A-Z][A-Z_ ]+\]")  # what looks like a tag or a control token
SHORTEST_MARK = 2  # characters of a first line that tells something
_PLACES = re.compile(f"{NAME}|{ID}|{NUMBER}|{KEY}")

Literal = Annotated[str, Meta(max_length=1024)]
Word = Annotated[str, Meta(max_length=64)]


class Markers(msgspec.Struct, frozen=True):
    """What opens and what closes a part of an answer."""

    opening: Literal
    closing: Literal


class JsonArguments(msgspec.Struct, frozen=True, tag="json"):
    """The arguments are one JSON object."""


class TaggedArguments(msgspec.Struct, frozen=True, omit_defaults=True, tag="tagged"):
    """One argument after the other, a string as it is and other values as JSON or as Python writes them. before: in
    front of a key. assign: between key and value, by the value's JSON type. after: behind a value. wrap: around a
    string with signs of XML in it. item: the tag of a list's entries where objects and lists are nested tags, "" where
    they are JSON. words: how true and false are written. is_python: objects and lists are literals of Python."""

    before: Literal
    assign: Annotated[dict[Word, Literal], Meta(max_length=8)]
    after: Literal
    wrap: Markers | None = None
    item: Word = ""
    words: tuple[Word, Word] = ("true", "false")
    is_python: bool = False


class LiteralArguments(msgspec.Struct, frozen=True, omit_defaults=True, tag="literal"):
    """Keys and literals, as in a call of Python. quote: around a string, with Python's escapes if it is one of hers.
    assign: between key and value. between: two arguments. is_raw: a string that is an argument has no escapes."""

    assign: Literal
    between: Literal
    quote: Literal
    is_raw: bool = False


Arguments = JsonArguments | TaggedArguments | LiteralArguments


class CallFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way to write calls: `opening`, calls with `between` between them, `closing`. A call: `begin`, its name,
    `named`, its arguments, `end`. between: None where a turn has one call at most. is_sorted: arguments stand in the
    order of their keys, whatever their order was."""

    begin: Literal
    named: Literal
    arguments: Arguments
    end: Literal
    opening: Literal = ""
    between: Literal | None = None
    closing: Literal = ""
    is_sorted: bool = False


class AnswerFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of it. Nothing set: the model says plain text.

    content: what is around the text of an answer; asides: what else opens text. restart: what begins a further part
    of a turn. prefill: what of an answer a prompt may have written. calls: None where the template shows the model no
    tools; also: how it may write calls besides. thoughts: the field of a message that holds its reasoning, "" where
    the template reads none. has_text_arguments: the template takes arguments as JSON text only. hides_calls: it shows
    no calls of a message that has text. renders_none: it shows no calls at all. id_chars: the length that it demands of
    the ids of calls, 0 for any.
    """

    reasoning: Markers | None = None
    content: Markers | None = None
    asides: Annotated[tuple[Literal, ...], Meta(max_length=8)] = ()
    restart: Literal = ""
    prefill: Literal = ""
    calls: CallFormat | None = None
    also: Annotated[tuple[CallFormat, ...], Meta(max_length=8)] = ()
    thoughts: Word = ""
    has_text_arguments: bool = False
    hides_calls: bool = False
    renders_none: bool = False
    id_chars: Annotated[int, Meta(ge=0, le=64)] = 0

    @property
    def around(self) -> tuple[str, ...]:
        """What stands around reasoning and text."""
        pairs = [(each.opening, each.closing) for each in (self.content, self.reasoning) if each is not None]
        return tuple(filter(None, (self.restart, *self.asides, *chain(*pairs))))

    def mark(self, form: CallFormat) -> str:
        """What tells that calls of this form begin: their first tags, or their first line where they have none."""
        whole = _PLACES.split((form.opening + form.begin).lstrip())[0]
        for tag in TAG.finditer(whole):
            if not any(text.startswith(whole[: tag.end()]) for text in self.around):
                return whole[: tag.end()]
        line = whole.split("\n")[0].rstrip()
        return line if len(line) > SHORTEST_MARK else whole.rstrip()

    @property
    def call_tags(self) -> Markers | None:
        """The tags around one call, or around a block of calls; None where there are none."""
        if (form := self.calls) is None:
            return None
        for sides in ((form.begin, form.end), (form.opening + form.begin, form.end + form.closing)):
            opening, closing = ([tag for tag in TAG.findall(text) if not _PLACES.search(tag)] for text in sides)
            if opening and closing:
                return Markers(opening[0], closing[-1])
        return None

    @property
    def literals(self) -> tuple[str, ...]:
        """Every text in it: a control token in one of them is shown, for it is read."""
        found = [self.prefill, *self.around]
        for form in (*([self.calls] if self.calls else []), *self.also):
            found += [form.opening, form.begin, form.named, form.end, form.between or "", form.closing]
            match form.arguments:
                case TaggedArguments(before=before, assign=assign, after=after):
                    found += [before, *assign.values(), after]
                case LiteralArguments(quote=quote):
                    found += [quote]
        return tuple(text for text in found if text)
