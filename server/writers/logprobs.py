"""Log probabilities in OpenAI's two shapes: one entry per token for chats, four parallel lists for completions."""

import codecs
from collections.abc import Sequence
from typing import Any

from engine.request import TextLogprob

UNLIKELY = -9999.0  # what OpenAI sends instead of minus infinity


def _number(logprob: float) -> float:
    return logprob if logprob > UNLIKELY else UNLIKELY


def chat_entries(logprobs: Sequence[TextLogprob], alternatives: int) -> list[dict[str, Any]]:
    """`choices[].logprobs.content`: the chosen token and the `alternatives` likeliest ones."""
    return [
        {
            "token": entry.token,
            "bytes": list(entry.token_bytes),
            "logprob": _number(entry.logprob),
            "top_logprobs": [
                {"token": token, "bytes": list(token_bytes), "logprob": _number(logprob)}
                for token, token_bytes, logprob in entry.top[:alternatives]
            ],
        }
        for entry in logprobs
    ]


class CompletionLists:
    """Builds the legacy lists of one choice, chunk by chunk.

    `text_offset` is the number of characters of the choice's text before the token; a token inside a code point
    shares the offset of its beginning.
    """

    def __init__(self, alternatives: int) -> None:
        self._alternatives = alternatives
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = 0

    def prompt_lists(self, pieces: Sequence[bytes], logprobs: Sequence[TextLogprob], hidden: int) -> dict[str, Any]:
        """The lists of an echoed prompt: a token more than `logprobs`, as nothing precedes the first.

        hidden: characters at the beginning that the tokens have and the echoed text has not (a BOS of our own).
        """
        self._characters -= hidden
        first = {"tokens": [pieces[0].decode("utf-8", "replace")], "token_logprobs": [None], "top_logprobs": [None]}
        offset = self._characters
        self._characters += len(self._decoder.decode(pieces[0]))
        rest = self.lists(logprobs)
        offsets = [max(0, place) for place in (offset, *rest["text_offset"])]
        return {name: first[name] + rest[name] for name in first} | {"text_offset": offsets}

    def lists(self, logprobs: Sequence[TextLogprob]) -> dict[str, Any]:
        """The lists for the next tokens. `top_logprobs` always has the chosen token too, as OpenAI's has."""
        offsets = []
        for entry in logprobs:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(entry.token_bytes))
        return {
            "tokens": [entry.token for entry in logprobs],
            "token_logprobs": [_number(entry.logprob) for entry in logprobs],
            "top_logprobs": [
                {token: _number(logprob) for token, _, logprob in entry.top[: self._alternatives]}
                | {entry.token: _number(entry.logprob)}
                for entry in logprobs
            ],
            "text_offset": offsets,
        }


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lists of a whole choice from those of its chunks."""
    return {
        name: [item for part in parts for item in part[name]]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    }
