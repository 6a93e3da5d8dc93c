"""One choice of a completion: its echo, its text, its lists of log-probabilities, and how good it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.request import Delta
from server.writers.logprobs import CompletionLists, joined
from server.writers.usage import FINISH_NAMES

Piece = tuple[str, dict[str, Any] | None]  # text and its lists


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
        self._finish: str | None = None
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
            pieces.append((echo.text, self._prompt_lists(echo, delta)))
        self._score += sum(entry.logprob for entry in delta.logprobs)
        self._tokens += len(delta.logprobs)
        lists = self._lists.lists(delta.logprobs) if self._lists is not None and delta.logprobs else None
        if delta.text or lists:
            pieces.append((delta.text, lists))
        return pieces

    def take(self, delta: Delta) -> None:
        """Keep a delta for `answer`."""
        self._pieces += self.pieces(delta)
        if delta.finish is not None:
            self._finish = FINISH_NAMES[delta.finish]

    def answer(self, number: int) -> dict[str, Any]:
        """The whole choice."""
        lists = [lists for _, lists in self._pieces if lists]
        return {
            "text": "".join(text for text, _ in self._pieces),
            "index": number,
            "logprobs": None if self._lists is None else joined(lists),
            "finish_reason": self._finish,
        }

    def _prompt_lists(self, echo: Echo, delta: Delta) -> dict[str, Any] | None:
        if self._lists is None:
            return None
        return self._lists.prompt_lists(echo.pieces, delta.prompt_logprobs, echo.hidden)


@dataclass(frozen=True, slots=True)
class Best:
    """`best_of`: of `made` choices of each prompt the `shown` likeliest per token, best first."""

    made: int
    shown: int

    def of(self, choices: Sequence[TextChoice]) -> list[TextChoice]:
        """The choices to show, prompt by prompt."""
        if self.made == self.shown:
            return list(choices)
        best: list[TextChoice] = []
        for start in range(0, len(choices), self.made):
            own = sorted(choices[start : start + self.made], key=lambda choice: -choice.mean_logprob)
            best += own[: self.shown]
        return best
