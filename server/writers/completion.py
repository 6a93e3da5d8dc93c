"""The text_completion object and the chunks of its stream."""

from collections.abc import Sequence
from typing import Any

from server.http.merged_stream import ChoiceDelta
from server.http.sse import PlainEnding
from server.writers.text_choice import Best, TextChoice
from server.writers.usage import FINISH_NAMES, Envelope, StreamUsage, TokenCount


class CompletionWriter(PlainEnding):
    """Chunks and answers of one completion request."""

    def __init__(
        self, envelope: Envelope, count: TokenCount, choices: Sequence[TextChoice], usage: StreamUsage, best: Best
    ) -> None:
        self._envelope = envelope
        self._count = count
        self._choices = choices
        self._usage = usage
        self._best = best

    @property
    def finished(self) -> bool:
        """True when every choice has finished."""
        return self._count.finished

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
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
                chunks.append(self._chunk(number, text, logprobs, finish))
        return chunks

    def _chunk(self, number: int, text: str, logprobs: dict[str, Any] | None, finish: str | None) -> dict[str, Any]:
        part = {"text": text, "index": number, "logprobs": logprobs, "finish_reason": finish}
        return self._usage.on(self._envelope.wrap("text_completion", [part]))

    def last_chunks(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        return self._usage.last(self._envelope.wrap("text_completion", []))

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""
        for number, delta in deltas:
            self._count.add(number, delta)
            self._choices[number].take(delta)

    def answer(self) -> dict[str, Any]:
        """The text_completion object."""
        choices = [choice.answer(number) for number, choice in enumerate(self._best.of(self._choices))]
        return self._envelope.wrap("text_completion", choices) | {"usage": self._count.usage()}
