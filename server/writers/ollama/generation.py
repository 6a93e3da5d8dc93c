"""The answers of /api/chat and /api/generate, whole or line by line."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import HexserveError
from engine.request import Delta, RequestTimings
from server.http.errors import from_engine
from server.http.merged_stream import ChoiceDelta
from server.writers.logprobs import chat_entries
from server.writers.ollama.timing import Stopwatch
from server.writers.ollama.whole_calls import WholeCalls
from server.writers.parsed_choice import ParsedChoice
from server.writers.reasoning import Thought
from server.writers.usage import FINISH_NAMES, TokenCount


@dataclass(slots=True)
class Said:
    """What an answer, or a line of it, says."""

    text: str = ""
    thinking: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: "Said") -> None:
        """What came after this."""
        self.text += other.text
        self.thinking += other.thinking
        self.calls += other.calls

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


def as_message(said: Said) -> dict[str, Any]:
    """The field of /api/chat."""
    thinking = {"thinking": said.thinking} if said.thinking else {}
    calls = {"tool_calls": said.calls} if said.calls else {}
    return {"message": {"role": "assistant", "content": said.text, **thinking, **calls}}


def as_response(said: Said) -> dict[str, Any]:
    """The fields of /api/generate."""
    return {"response": said.text, **({"thinking": said.thinking} if said.thinking else {})}


class OllamaWriter:
    """Lines and answers of one request. shown: the fields that say what was said. alternatives: None = no logprobs."""

    ending = b""  # the line with `done` is the end
    events = 0

    def __init__(
        self,
        model: str,
        count: TokenCount,
        choice: ParsedChoice,
        shown: Callable[[Said], dict[str, Any]],
        stopwatch: Stopwatch,
        alternatives: int | None,
    ) -> None:
        self._model = model
        self._count = count
        self._choice = choice
        self._shown = shown
        self._stopwatch = stopwatch
        self._alternatives = alternatives
        self._calls = WholeCalls()
        self._whole = Said()
        self._finish = ""
        self._timings: RequestTimings | None = None

    @property
    def finished(self) -> bool:
        """True when the answer is complete."""
        return self._count.finished

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[dict[str, Any]]:
        """A line per delta that says something. Logprobs of tokens without text go with what follows."""
        lines = []
        for number, delta in deltas:
            said = self._take(number, delta)
            if said:
                lines.append(self._line(said) | self._taken_logprobs())
        return lines

    def last_chunks(self) -> list[dict[str, Any]]:
        """The line that says why the answer ended, and its counts."""
        return [self._line(Said()) | self._taken_logprobs() | self._end()]

    def failure(self, error: HexserveError) -> list[dict[str, Any]]:
        """The last line of a stream that cannot go on."""
        return [{"error": from_engine(error).message}]

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""
        for number, delta in deltas:
            self._whole.add(self._take(number, delta))

    def answer(self) -> dict[str, Any]:
        """The whole answer."""
        return self._line(self._whole) | self._taken_logprobs() | self._end()

    def _take(self, number: int, delta: Delta) -> Said:
        self._count.add(number, delta)
        others, calls = self._calls.feed(self._choice.take(delta), delta.finish is not None)
        if delta.finish is not None:
            self._finish, self._timings = FINISH_NAMES[delta.finish], delta.timings
        return Said(
            "".join(part for part in others if isinstance(part, str)),
            "".join(part.text for part in others if isinstance(part, Thought)),
            calls,
        )

    def _line(self, said: Said) -> dict[str, Any]:
        stamp = self._stopwatch.clock.stamp()
        return {"model": self._model, "created_at": stamp, **self._shown(said), "done": False}

    def _end(self) -> dict[str, Any]:
        usage = self._count.usage()
        counts = {"prompt_eval_count": usage["prompt_tokens"], "eval_count": usage["completion_tokens"]}
        return {"done": True, "done_reason": self._finish, **self._stopwatch.durations(self._timings), **counts}

    def _taken_logprobs(self) -> dict[str, Any]:
        if self._alternatives is None or not self._choice.logprobs:
            return {}
        entries = chat_entries(self._choice.logprobs, self._alternatives)
        self._choice.logprobs = []
        return {"logprobs": entries}
