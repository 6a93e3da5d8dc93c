"""Token events to deltas: bytes to text, stop strings, stop tokens, log-probabilities. No I/O."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from engine.request import Delta, FinishReason, TextLogprob, TokenEvent, TokenLogprob
from engine.text.tokenizer import Tokenizer


class Detokenizer:
    """Text of one growing sequence of tokens: the pieces joined equal the decoding of all its bytes at once. Incomplete
    UTF-8 is held back; bytes that can never become a character give U+FFFD, one for each maximal subpart (Unicode 15,
    section 3.9), as a decoding of the whole does. Constant work per token."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that is certain after one more token, often empty in the middle of a character."""
        if self._skip_special and self._tokenizer.is_hidden(token_id):
            return ""
        return self._decoder.decode(self._tokenizer.token_bytes(token_id))

    def flush(self) -> str:
        """The end: what is held back becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


class StopMatcher:
    """The stop that is complete first wins; of several complete at the same character, the longest. Held back is only
    the longest end of the text that could still become a stop. `matched` is the stop once found; nothing may be pushed
    after that. include: whether a stop is given out, of those that were there from the start."""

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        self._stops = [stop for stop in stops if stop]
        self._included = frozenset(self._stops if include else ())
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Text that may be given out after `piece`. On a match: all before the stop (and the stop, if included)."""
        assert self.matched is None, "the text has already ended"
        text, self._held = self._held + piece, ""
        found = [(place + len(stop), -len(stop), stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            end, size, self.matched = min(found)
            return text[: end if self.matched in self._included else end + size]
        certain = min((_begin_of(stop, text) for stop in self._stops), default=len(text))
        self._held = text[certain:]
        return text[:certain]

    def add(self, stop: str) -> None:
        """A further stop for the text that follows what has been pushed."""
        self._stops.append(stop)

    def flush(self) -> str:
        """The end of the text: what was held back did not become a stop."""
        held, self._held = self._held, ""
        return held


def _begin_of(stop: str, text: str) -> int:
    """Where the longest end of `text` begins that begins `stop`; the length of `text` where none does."""
    place = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while place >= 0 and not stop.startswith(text[place:]):
        place = text.find(stop[0], place + 1)
    return place if place >= 0 else len(text)


class PartFinder:
    """Finds the parts of a text that begin with `opening` and end with the first `closing` behind it."""

    def __init__(self, opening: str, closing: str) -> None:
        self._opening, self._closing = opening, closing
        self._text = ""
        self._is_inside = False

    def feed(self, text: str) -> list[str]:
        searched = max(0, len(self._text) - len(self._closing) + 1)
        self._text += text
        found = list[str]()
        while True:
            if not self._is_inside:
                start = self._text.find(self._opening)
                self._is_inside = start >= 0
                self._text = self._text[start if start >= 0 else max(0, len(self._text) - len(self._opening) + 1) :]
                searched = len(self._opening)
            end = self._text.find(self._closing, max(searched, len(self._opening))) if self._is_inside else -1
            if end < 0:
                return found
            end += len(self._closing)
            found.append(self._text[:end])
            self._text, self._is_inside = self._text[end:], False


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends the text and what of it is shown."""

    strings: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    end_ids: tuple[int, ...] = ()  # the model's own end tokens
    once: tuple[str, str] | None = None  # opens and closes a part of the text, which ends when that comes a second time


class TextAssembler:
    """Owns the text state of one sequence. After a delta with `finish` it must not be fed again."""

    def __init__(self, tokenizer: Tokenizer, rules: StopRules) -> None:
        self._tokenizer = tokenizer
        self._rules = rules
        self._detokenizer = Detokenizer(tokenizer, rules.skip_special)
        has_stops = bool(rules.strings) or rules.once is not None
        self._matcher = StopMatcher(rules.strings, rules.include_stop) if has_stops else None
        self._parts = PartFinder(*rules.once) if rules.once is not None else None

    def feed(self, event: TokenEvent) -> Delta:
        """Turn one event into one delta; a stop string in it finishes the delta and drops the tokens behind."""
        text = ""
        last = len(event.token_ids) - 1
        for index, token_id in enumerate(event.token_ids):
            if index == last and event.stopped_by == token_id and not self._shows_stop_token(token_id):
                continue
            text += self._push(self._detokenizer.push(token_id))
            if self._matched is not None:
                return self._stopped(event, text, index + 1)
        if event.finish is not None:
            text += self._push(self._detokenizer.flush())
            if self._matched is not None:
                return self._stopped(event, text, last + 1)
            text += self._matcher.flush() if self._matcher is not None else ""
        stopped_by = None if event.stopped_by in self._rules.end_ids else event.stopped_by
        return self._delta(event, text, last + 1, event.finish, stopped_by)

    @property
    def _matched(self) -> str | None:
        return self._matcher.matched if self._matcher is not None else None

    def _push(self, text: str) -> str:
        if self._matcher is None:
            return text
        if self._parts is None:
            return self._matcher.push(text)
        certain = ""
        for character in text:  # a token may end one part and begin the next
            more = self._matcher.push(character)
            certain += more
            if self._matched is not None:
                break
            for part in self._parts.feed(more):
                self._matcher.add(part)
        return certain

    def _stopped(self, event: TokenEvent, text: str, used: int) -> Delta:
        stop = self._matched if self._matched in self._rules.strings else None
        return self._delta(event, text, used, FinishReason.STOP, stop)

    def _delta(
        self, event: TokenEvent, text: str, used: int, finish: FinishReason | None, stopped_by: str | int | None
    ) -> Delta:
        of_prompt = tuple(map(self._text_logprob, event.prompt_logprobs))
        logprobs, ids = self._logprobs(event.logprobs[:used]), event.token_ids[:used]
        return Delta(text, ids, logprobs, finish, stopped_by, event.timings, of_prompt, vector=event.vector)

    def _shows_stop_token(self, token_id: int) -> bool:
        """A special token shows when specials do; an ordinary one is a stop sequence like a stop string."""
        is_special = self._tokenizer.is_special(token_id)
        return not self._rules.skip_special if is_special else self._rules.include_stop

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> tuple[TextLogprob, ...]:
        hides = self._rules.skip_special
        return tuple(self._text_logprob(each, hides and self._tokenizer.is_hidden(each.token_id)) for each in entries)

    def _text_logprob(self, entry: TokenLogprob, is_hidden: bool = False) -> TextLogprob:
        own = self._tokenizer.token_bytes(entry.token_id)
        top = [(self._tokenizer.token_bytes(token_id), logprob) for token_id, logprob in entry.top]
        alternatives = tuple((token.decode("utf-8", "replace"), token, logprob) for token, logprob in top)
        return TextLogprob(own.decode("utf-8", "replace"), own, entry.logprob, alternatives, is_hidden)
