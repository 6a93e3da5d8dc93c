"""Tool calls in the model's text, read as they come. How a model writes them: `engine/bundle/answer_format.py`."""

import re
from collections.abc import Mapping

from engine.bundle.answer_format import AnswerFormat
from server.writers.argument_readers import Schema
from server.writers.call_block import CallArguments, CallBegin, CallBlock, Piece
from server.writers.literals import uncertain

NO_SCHEMAS: Mapping[str, Schema] = {}


class CallSplitter:
    """Splits the text of one choice, piece by piece, into plain text and calls.

    Held back: what may be the beginning of a marker, a call until its name and the begin of its arguments are known,
    and white space, which is dropped when a call follows it or precedes it. A call that does not begin as one comes
    out as the text it is. What is around the text of an answer is dropped.
    """

    def __init__(
        self, form: AnswerFormat, may_call: bool = True, schemas: Mapping[str, Schema] = NO_SCHEMAS, prefilled: str = ""
    ) -> None:
        """schemas: of the parameters of functions, by name. prefilled: what the prompt has written of the answer."""
        self._form, self._schemas = form, schemas
        opening, closing = (form.content.opening, form.content.closing) if form.content else ("", "")
        self._openings = frozenset(text for text in (opening, *form.asides) if text)
        self._closing = closing
        taken = tuple(text for text in (*self._openings, closing, form.restart) if text)
        formats = (form.calls, *form.also) if form.calls is not None and may_call else ()
        self._formats = {form.mark(each): each for each in reversed(formats)}
        self._bare = next((mark for mark in self._formats if mark.startswith("{")), "")
        marks = {mark for mark in self._formats if mark != self._bare} | set(taken)
        self._marks = tuple(sorted(marks, key=len, reverse=True))
        self._search = re.compile("|".join(map(re.escape, self._marks))) if self._marks else None
        self._held, self._lead = prefilled, ""
        self._block: CallBlock | None = None
        self._ids: set[str] = set()
        self._calls = 0
        self._has_said = False
        self._is_trimming = bool(prefilled)  # nothing but white space since a call or a marker
        self._is_closed = False  # the text has ended: what follows is no text of the answer

    @property
    def has_calls(self) -> bool:
        """True once a call came out."""
        return self._calls > 0

    def feed(self, text: str, is_last: bool = False) -> list[Piece]:
        """What is certain now, in order; everything when `is_last`."""
        self._held += text
        found: list[Piece] = []
        while (pieces := self._next(is_last)) is not None:
            found += pieces
        return [piece for piece in found if piece]

    def _next(self, is_last: bool) -> list[Piece] | None:
        """What comes next, None when more text is needed for it."""
        if self._block is not None:
            return self._called(self._block, is_last)
        if self._bare and not self._has_said:
            shown = self._held.lstrip()
            if shown.startswith("{"):
                return self._opened(self._bare, self._held[: len(self._held) - len(shown)], shown)
            if not shown and not is_last:
                return None
        return self._said(is_last)

    def _said(self, is_last: bool) -> list[Piece] | None:
        mark = self._search.search(self._held) if self._search is not None else None
        if mark is None or (not is_last and self._may_be_longer(mark)):
            end = mark.start() if mark is not None else len(self._held)
            if not is_last:
                end -= uncertain(self._held[:end], self._marks if mark is None else ())
            text, self._held = self._held[:end], self._held[end:]
            return [self._text(text)] if text else None
        text, rest = self._held[: mark.start()], self._held[mark.end() :]
        if mark[0] in self._formats and mark[0] not in self._openings:
            kept = text.rstrip()
            return [self._text(kept), *self._opened(mark[0], text[len(kept) :], self._held[mark.start() :])]
        said = self._text(text.rstrip() if mark[0] == self._closing else text)
        self._held, self._is_trimming = rest, True
        self._is_closed = mark[0] == self._closing
        return [said]

    def _may_be_longer(self, mark: re.Match[str]) -> bool:
        rest = self._held[mark.start() :]
        return any(len(each) > len(rest) and each.startswith(rest) for each in self._marks)

    def _opened(self, mark: str, lead: str, held: str) -> list[Piece]:
        self._lead, self._held = lead, held
        form = self._formats[mark]
        self._block = CallBlock(form, self._schemas, self._calls, self._form.id_chars, self._ids)
        return []

    def _called(self, block: CallBlock, is_last: bool) -> list[Piece] | None:
        pieces = block.feed(self._held, is_last)
        self._held = ""
        if block.calls > self._calls:
            self._calls, self._lead, self._has_said = block.calls, "", True
            self._is_trimming, self._is_closed = True, False
        if block.rest is None:
            return pieces or None
        self._held, self._block = block.rest, None
        if block.refused:
            return [*pieces, self._text(self._lead + block.refused)]
        return pieces

    def _text(self, text: str) -> str:
        """Text of the answer: without white space behind a call or a marker, and nothing behind its end."""
        if self._is_closed:
            return ""
        shown = text.lstrip() if self._is_trimming else text
        self._is_trimming = self._is_trimming and not shown
        self._has_said = self._has_said or bool(shown.strip())
        return shown


__all__ = ["CallArguments", "CallBegin", "CallSplitter", "Piece"]
