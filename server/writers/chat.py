"""The chat.completion object and the chunks of its stream."""

from collections.abc import Sequence
from typing import Any

from server.http.merged_stream import ChoiceDelta
from server.http.sse import PlainEnding
from server.writers.logprobs import chat_entries
from server.writers.parsed_choice import ParsedChoice, Part
from server.writers.reasoning import Thought
from server.writers.tool_calls import CallArguments, CallBegin
from server.writers.usage import Envelope, StreamUsage, TokenCount


class ChatWriter(PlainEnding):
    """Chunks and answers of one chat."""

    def __init__(
        self,
        envelope: Envelope,
        count: TokenCount,
        choices: Sequence[ParsedChoice],
        alternatives: int | None,
        usage: StreamUsage,
    ) -> None:
        self._envelope = envelope
        self._count = count
        self._alternatives = alternatives
        self._usage = usage
        self._choices = choices
        self._has_roles = False

    @property
    def finished(self) -> bool:
        """True when every choice has finished."""
        return self._count.finished

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        """Role first, then content and calls, then the finish. Logprobs of tokens without text go with what follows."""
        chunks = []
        for number, delta in deltas:
            choice = self._choices[number]
            self._count.add(number, delta)
            if not self._has_roles:  # of all choices in order: openai-python's helper needs choice 0 to come first
                self._has_roles = True
                role = {"role": "assistant", "content": ""}
                chunks += [self._chunk(each, role) for each in range(len(self._choices))]
            parts = choice.take(delta)
            self._count.add_reasoning(choice.new_reasoning_tokens())
            for part in parts:
                chunks.append(self._chunk(number, _delta(part), self._take_logprobs(choice, only_if_any=True)))
            if delta.finish is not None:
                logprobs = self._take_logprobs(choice, only_if_any=True)
                chunks.append(self._chunk(number, {}, logprobs, choice.finish_name(delta.finish)))
        return chunks

    def last_chunks(self) -> list[dict[str, Any]]:
        """The usage chunk, if it was asked for."""
        return self._usage.last(self._envelope.wrap("chat.completion.chunk", []))

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""
        for number, delta in deltas:
            self._count.add(number, delta)
            choice = self._choices[number]
            choice.parts += choice.take(delta)
            self._count.add_reasoning(choice.new_reasoning_tokens())
            if delta.finish is not None:
                choice.finish = choice.finish_name(delta.finish)

    def answer(self) -> dict[str, Any]:
        """The chat.completion object."""
        choices = [
            {
                "index": number,
                "message": choice.message(),
                "logprobs": self._take_logprobs(choice),
                "finish_reason": choice.finish,
            }
            for number, choice in enumerate(self._choices)
        ]
        return self._envelope.wrap("chat.completion", choices) | {"usage": self._count.usage()}

    def _take_logprobs(self, choice: ParsedChoice, only_if_any: bool = False) -> dict[str, Any] | None:
        if self._alternatives is None or (only_if_any and not choice.logprobs):
            return None
        entries = chat_entries(choice.logprobs, self._alternatives)
        choice.logprobs = []
        return {"content": entries, "refusal": None}

    def _chunk(
        self, number: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None, finish: str | None = None
    ) -> dict[str, Any]:
        part = {"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._usage.on(self._envelope.wrap("chat.completion.chunk", [part]))


def _delta(part: Part) -> dict[str, Any]:
    """Streamed form of one part: a call opens with its id and name, its arguments follow."""
    match part:
        case Thought(text):
            return {"reasoning_content": text}
        case CallBegin(index, identity, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": identity, "type": "function", "function": function}]}
        case CallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        case str():
            return {"content": part}
