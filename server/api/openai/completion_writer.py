"""The text_completion object and the chunks of its stream."""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from engine.request import Delta, TextLogprob
from server.generation.answers import FINISH_NAMES, Envelope, Identified, StreamUsage, TokenCount, likely
from server.generation.framing import PlainEnding
from server.generation.stream import ChoiceDelta
from server.http.fields import Answer

Finish = Literal["stop", "length"]


class CompletionLogprobs(Answer):
    """Parallel lists, one element per token; `text_offset` counts characters of the choice's text.

    The first token of an echoed prompt has null for both numbers: nothing precedes it.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]

    def add(self, other: "CompletionLogprobs") -> None:
        self.tokens += other.tokens
        self.token_logprobs += other.token_logprobs
        self.top_logprobs += other.top_logprobs
        self.text_offset += other.text_offset


class CompletionChoice(Answer):
    """One answer to one prompt; index = prompt * n + choice. `finish_reason` is null only inside a stream."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(Identified, kw_only=True):
    """Answer of POST /v1/completions, and each event of its stream (there `usage` as in ChatChunk)."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class CompletionLists:
    """Builds the legacy lists of one choice, chunk by chunk.

    `text_offset` is the number of characters of the choice's text before the token; a token inside a code point
    shares the offset of its beginning.
    """

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def prompt_lists(self, pieces: Sequence[bytes], logprobs: Sequence[TextLogprob], hidden: int) -> CompletionLogprobs:
        """The lists of an echoed prompt: a token more than `logprobs`, as nothing precedes the first.

        hidden: characters at the beginning that the tokens have and the echoed text has not (a BOS of our own).
        """
        self._characters -= hidden
        lists = CompletionLogprobs([pieces[0].decode("utf-8", "replace")], [None], [None], [self._characters])
        self._characters += len(self._decoder.decode(pieces[0]))
        lists.add(self.lists(logprobs))
        lists.text_offset = [max(0, place) for place in lists.text_offset]
        return lists

    def lists(self, logprobs: Sequence[TextLogprob]) -> CompletionLogprobs:
        """The lists for the next tokens. `top_logprobs` always has the chosen token too, as OpenAI's has."""
        offsets = []
        for entry in logprobs:
            offsets.append(self._characters)
            if not entry.is_hidden:
                self._characters += len(self._decoder.decode(entry.token_bytes))
        return CompletionLogprobs(
            [entry.token for entry in logprobs],
            [likely(entry.logprob) for entry in logprobs],
            [
                {token: likely(logprob) for token, _, logprob in entry.top[: self._alternatives]}
                | {entry.token: likely(entry.logprob)}
                for entry in logprobs
            ],
            offsets,
        )


Piece = tuple[str, CompletionLogprobs | None]  # text and its lists


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt to repeat. pieces: its tokens' bytes. hidden: characters that they begin with and `text` does not."""

    text: str
    pieces: tuple[bytes, ...]
    hidden: int = 0

    @classmethod
    def of(cls, prompt: str | Sequence[int], pieces: tuple[bytes, ...]) -> "Echo":
        """The prompt as it was given; `pieces` of a text may have more (a BOS of our own) or less (it was cut)."""
        text = b"".join(pieces).decode("utf-8", "replace")
        if isinstance(prompt, str) and text.endswith(prompt):
            return cls(prompt, pieces, len(text) - len(prompt))
        return cls(text, pieces)


class TextChoice:
    """One choice of a completion, delta by delta. `alternatives` None = no logprobs."""

    def __init__(self, alternatives: int | None, echo: Echo | None = None) -> None:
        self._lists = None if alternatives is None else CompletionLists(alternatives)
        self._echo = echo
        self._pieces: list[Piece] = []
        self._finish: Finish | None = None
        self._score, self._tokens = 0.0, 0

    @property
    def mean_logprob(self) -> float:
        """Log-probability per token; the engine must have reported them."""
        return self._score / self._tokens if self._tokens else 0.0

    def pieces(self, delta: Delta) -> list[Piece]:
        """What is new with this delta; before the first comes the echo."""
        pieces: list[Piece] = []
        if self._echo is not None:
            echo, self._echo = self._echo, None
            of_prompt = None
            if self._lists is not None:
                of_prompt = self._lists.prompt_lists(echo.pieces, delta.prompt_logprobs, echo.hidden)
            pieces.append((echo.text, of_prompt))
        self._score += sum(entry.logprob for entry in delta.logprobs)
        self._tokens += len(delta.logprobs)
        lists = self._lists.lists(delta.logprobs) if self._lists is not None and delta.logprobs else None
        if delta.text or lists:
            pieces.append((delta.text, lists))
        self._pieces += pieces
        if delta.finish is not None:
            self._finish = FINISH_NAMES[delta.finish]
        return pieces

    def answer(self, number: int) -> CompletionChoice:
        lists = None if self._lists is None else CompletionLogprobs([], [], [], [])
        for _, more in self._pieces:
            if lists is not None and more is not None:
                lists.add(more)
        return CompletionChoice("".join(text for text, _ in self._pieces), number, lists, self._finish)


@dataclass(frozen=True, slots=True)
class Best:
    """`best_of`: of `made` choices of each prompt the `shown` likeliest per token, best first."""

    made: int
    shown: int

    def of(self, choices: Sequence[TextChoice]) -> list[TextChoice]:
        if self.made == self.shown:
            return list(choices)
        best: list[TextChoice] = []
        for start in range(0, len(choices), self.made):
            own = sorted(choices[start : start + self.made], key=lambda choice: -choice.mean_logprob)
            best += own[: self.shown]
        return best


class CompletionWriter(PlainEnding):
    def __init__(
        self, envelope: Envelope, count: TokenCount, choices: Sequence[TextChoice], usage: StreamUsage, best: Best
    ) -> None:
        self._envelope = envelope
        self._count = count
        self._choices = choices
        self._usage = usage
        self._best = best

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[Completion]:
        """One chunk per delta that has text, logprobs or a finish; an echo goes before in a chunk of its own."""
        chunks = []
        for number, delta in deltas:
            self._count.add(number, delta)
            pieces = self._choices[number].pieces(delta)
            if delta.finish is not None and not pieces:
                pieces = [("", None)]
            for place, (text, logprobs) in enumerate(pieces, 1):
                is_last = place == len(pieces)
                finish = FINISH_NAMES[delta.finish] if delta.finish is not None and is_last else None
                choice = CompletionChoice(text, number, logprobs, finish)
                chunks.append(self._usage.on(self._envelope.around(Completion, [choice])))
        return chunks

    def last_chunks(self) -> list[Completion]:
        return self._usage.last(self._envelope.around(Completion, []))

    def answer(self) -> Completion:
        choices = [choice.answer(number) for number, choice in enumerate(self._best.of(self._choices))]
        return self._count.on(self._envelope.around(Completion, choices))
