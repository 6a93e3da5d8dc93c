"""Token events to deltas: bytes to text, stop strings, stop tokens, log-probabilities. No I/O.

Stop strings in a stream of text pieces, found across any borders, in time linear in the text.

Aho and Corasick, "Efficient string matching: an aid to bibliographic search", CACM 18(6), 1975.
"""

import codecs
from collections import deque
from dataclasses import dataclass, field

from engine.request import Delta, FinishReason, TextLogprob, TokenEvent, TokenLogprob
from engine.text.tokenizer import Tokenizer


class Detokenizer:
    """Text of one growing sequence of tokens: the pieces joined equal the decoding of all its bytes at once.

    Incomplete UTF-8 is held back; bytes that can never become a character give U+FFFD, one for each maximal
    subpart (Unicode 15, section 3.9), as a decoding of the whole does. Constant work per token.
    """

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


@dataclass(slots=True)
class _Node:
    depth: int
    next: dict[str, int] = field(default_factory=dict)
    fallback: int = 0
    match: str | None = None  # longest stop that ends here


class StopMatcher:
    """The stop that is complete first wins; of several complete at the same character, the longest.

    Held back is only the longest end of the text that could still become a stop. `matched` is the stop once found;
    nothing may be pushed after that. include: whether a stop is given out, of those that were there from the start.
    """

    def __init__(self, stops: tuple[str, ...], include: bool = False) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._included = frozenset(self._stops if include else ())
        self._follow(self._stops)
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Text that may be given out after `piece`. On a match: all before the stop (and the stop, if included)."""
        assert self.matched is None, "the text has already ended"
        if self._state == 0 and self._first.isdisjoint(piece):
            return piece  # the usual case: nothing is held and nothing begins
        nodes, state = self._nodes, self._state
        for index, character in enumerate(piece):
            state = self._step(state, character)
            stop = nodes[state].match
            if stop is not None:
                self.matched = stop
                text = self._held + piece[: index + 1]
                self._held = ""
                return text if stop in self._included else text[: len(text) - len(stop)]
        self._state = state
        text = self._held + piece
        certain = len(text) - nodes[state].depth
        self._held = text[certain:]
        return text[:certain]

    def add(self, stop: str) -> None:
        """A further stop for the text that follows what has been pushed."""
        self._stops = (*self._stops, stop)
        self._follow(self._stops)
        self._state = 0
        for character in self._held:
            self._state = self._step(self._state, character)

    def flush(self) -> str:
        """The end of the text: what was held back did not become a stop."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _follow(self, stops: tuple[str, ...]) -> None:
        self._nodes = _automaton(stops)
        self._first = frozenset(self._nodes[0].next)

    def _step(self, state: int, character: str) -> int:
        nodes = self._nodes
        while True:
            target = nodes[state].next.get(character)
            if target is not None:
                return target
            if state == 0:
                return 0
            state = nodes[state].fallback


def _automaton(stops: tuple[str, ...]) -> list[_Node]:
    nodes = [_Node(0)]
    for stop in stops:
        state = 0
        for character in stop:
            if character not in nodes[state].next:
                nodes[state].next[character] = len(nodes)
                nodes.append(_Node(nodes[state].depth + 1))
            state = nodes[state].next[character]
        nodes[state].match = stop
    queue = deque(nodes[0].next.values())
    while queue:  # breadth first: a fallback is shorter, so it is already complete
        state = queue.popleft()
        node = nodes[state]
        for character, target in node.next.items():
            candidate = node.fallback
            while candidate and character not in nodes[candidate].next:
                candidate = nodes[candidate].fallback
            found = nodes[candidate].next.get(character, 0)
            nodes[target].fallback = found if found != target else 0
            nodes[target].match = nodes[target].match or nodes[nodes[target].fallback].match
            queue.append(target)
    return nodes


class PartFinder:
    """Finds the parts of a text that begin with `opening` and end with the first `closing` behind it."""

    def __init__(self, opening: str, closing: str) -> None:
        self._opening, self._closing = opening, closing
        self._text = ""
        self._is_inside = False

    def feed(self, text: str) -> list[str]:
        """Parts that this text completes, markers included."""
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
    """What ends the text and what of it is shown. `end_ids` are the model's own end tokens.

    once: what opens and what closes a part of the text, as a tool call; the same part a second time ends the text.
    """

    strings: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special: bool = True
    end_ids: tuple[int, ...] = ()
    once: tuple[str, str] | None = None


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
        return Delta(
            text,
            event.token_ids,
            tuple(self._text_logprob(entry) for entry in event.logprobs),
            event.finish,
            None if event.stopped_by in self._rules.end_ids else event.stopped_by,
            event.timings,
            self._prompt_logprobs(event),
            vector=event.vector,
        )

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

    def _stopped(self, event: TokenEvent, text: str, used_tokens: int) -> Delta:
        logprobs = tuple(self._text_logprob(entry) for entry in event.logprobs[:used_tokens])
        used = event.token_ids[:used_tokens]
        prompt_logprobs = self._prompt_logprobs(event)
        stop = self._matched if self._matched in self._rules.strings else None
        return Delta(text, used, logprobs, FinishReason.STOP, stop, event.timings, prompt_logprobs)

    def _prompt_logprobs(self, event: TokenEvent) -> tuple[TextLogprob, ...]:
        return tuple(self._text_logprob(entry) for entry in event.prompt_logprobs)

    def _shows_stop_token(self, token_id: int) -> bool:
        """A special token shows when specials do; an ordinary one is a stop sequence like a stop string."""
        if self._tokenizer.is_special(token_id):
            return not self._rules.skip_special
        return self._rules.include_stop

    def _text_logprob(self, entry: TokenLogprob) -> TextLogprob:
        own = self._tokenizer.token_bytes(entry.token_id)
        alternatives = []
        for token_id, logprob in entry.top:
            token = self._tokenizer.token_bytes(token_id)
            alternatives.append((token.decode("utf-8", "replace"), token, logprob))
        return TextLogprob(own.decode("utf-8", "replace"), own, entry.logprob, tuple(alternatives))
