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
    """One argument after the other, a string as it is and other values as JSON or as Python writes them."""

    before: Literal  # in front of a key
    assign: Annotated[dict[Word, Literal], Meta(max_length=8)]  # behind it, by the value's JSON type
    after: Literal  # behind a value
    wrap: Markers | None = None  # around a string with signs of XML in it
    item: Word = ""  # tag of a list's entries where values are nested tags, "" = they are JSON
    words: tuple[Word, Word] = ("true", "false")  # how true and false are written
    is_python: bool = False  # objects and lists are literals of Python


class LiteralArguments(msgspec.Struct, frozen=True, omit_defaults=True, tag="literal"):
    """Keys and literals, as in a call of Python."""

    assign: Literal  # between key and value
    between: Literal  # two arguments
    quote: Literal  # around a string, with Python's escapes if it is one of hers
    is_raw: bool = False  # a string that is an argument has no escapes


Arguments = JsonArguments | TaggedArguments | LiteralArguments


class CallFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """`opening`, calls with `between` between them, `closing`. A call: `begin`, name, `named`, arguments, `end`."""

    begin: Literal
    named: Literal
    arguments: Arguments
    end: Literal
    opening: Literal = ""
    between: Literal | None = None  # None where a turn has one call at most
    closing: Literal = ""
    is_sorted: bool = False  # arguments stand in the order of their keys, whatever their order was


class AnswerFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """All of it. Nothing set: the model says plain text."""

    reasoning: Markers | None = None
    content: Markers | None = None  # what is around the text of an answer
    asides: Annotated[tuple[Literal, ...], Meta(max_length=8)] = ()  # what else opens text
    restart: Literal = ""  # what begins a further part of a turn
    prefill: Literal = ""  # what of an answer a prompt may have written
    calls: CallFormat | None = None  # None where the template shows the model no tools
    also: Annotated[tuple[CallFormat, ...], Meta(max_length=8)] = ()  # further ways to write calls
    thoughts: Word = ""  # the field of a message that holds its reasoning, "" where the template reads none
    has_text_arguments: bool = False  # the template takes arguments as JSON text only
    hides_calls: bool = False  # it shows no calls of a message that has text
    renders_none: bool = False  # it shows no calls at all
    id_chars: Annotated[int, Meta(ge=0, le=64)] = 0  # the length that it demands of the ids of calls, 0 for any

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
