"""The answers of /api/chat and /api/generate, whole or line by line."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from msgspec import UNSET, UnsetType

from engine.errors import HexserveError
from engine.request import Delta, RequestTimings
from server.generation.answers import FINISH_NAMES, TokenCount, TokenLogprobEntry
from server.generation.argument_reading import CallArguments
from server.generation.call_reading import CallBegin
from server.generation.framing import AnswerWriter
from server.generation.growing_text import whole_object
from server.generation.parsing import ParsedChoice, Part, Thought
from server.generation.stream import ChoiceDelta
from server.http.errors import OllamaError, from_engine
from server.http.fields import Answer

DoneReason = Literal["stop", "length", "load", "unload"]


class OllamaCalledAnswer(Answer):
    """Name and arguments; `index` is the call's place in the answer."""

    index: int
    name: str
    arguments: dict[str, Any]


class OllamaCallAnswer(Answer):
    id: str
    function: OllamaCalledAnswer


@dataclass(slots=True)
class Said:
    text: str = ""
    thinking: str = ""
    calls: list[OllamaCallAnswer] = field(default_factory=list)

    def add(self, other: "Said") -> None:
        self.text += other.text
        self.thinking += other.thinking
        self.calls += other.calls

    def __bool__(self) -> bool:
        return bool(self.text or self.thinking or self.calls)


class OllamaAnswerMessage(Answer, kw_only=True):
    """What the model said, or what is new of it in a stream."""

    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCallAnswer] | UnsetType = UNSET


class OllamaLine(Answer, kw_only=True):
    """An answer or a line of its stream. Durations are nanoseconds; they and `done_reason` come when `done` is true."""

    model: str
    created_at: str
    message: OllamaAnswerMessage | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    done: bool = False
    logprobs: list[TokenLogprobEntry] | UnsetType = UNSET
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET


class OllamaChatAnswer(OllamaLine, kw_only=True):
    """Answer of POST /api/chat, whole or a line of its stream."""

    message: OllamaAnswerMessage
    response: UnsetType = UNSET
    thinking: UnsetType = UNSET

    @classmethod
    def of(cls, model: str, said: Said) -> OllamaLine:
        thinking, calls = said.thinking or UNSET, said.calls or UNSET
        message = OllamaAnswerMessage(content=said.text, thinking=thinking, tool_calls=calls)
        return cls(model=model, created_at=stamp(time.time_ns()), message=message)


class OllamaGenerateAnswer(OllamaLine, kw_only=True):
    """Answer of POST /api/generate, whole or a line of its stream."""

    message: UnsetType = UNSET
    response: str

    @classmethod
    def of(cls, model: str, said: Said) -> OllamaLine:
        now, thinking = stamp(time.time_ns()), said.thinking or UNSET
        return cls(model=model, created_at=now, response=said.text, thinking=thinking)


LineKind = type[OllamaChatAnswer] | type[OllamaGenerateAnswer]

SECOND_NS = 1_000_000_000
LONGEST_S = 100 * 365 * 86_400
NEVER = "9999-12-31T23:59:59Z"


def stamp(now_ns: int, in_s: float | None = 0.0) -> str:
    """The time in so many seconds, None is never. now_ns: Unix time."""
    return NEVER if in_s is None or in_s > LONGEST_S else rfc3339(now_ns + round(in_s * SECOND_NS))


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """When a request came, and when its model was there, in nanoseconds of a clock that only runs forward."""

    came_ns: int
    loaded_ns: int

    def durations(self, now_ns: int, timings: RequestTimings | None) -> dict[str, int]:
        """Of an answer that is complete now. The engine's are a nanosecond at least: clients divide by them."""
        prompt_ms, generate_ms = (timings.prompt_ms, timings.generate_ms) if timings is not None else (0.0, 0.0)
        return {
            "total_duration": now_ns - self.came_ns,
            "load_duration": self.loaded_ns - self.came_ns,
            "prompt_eval_duration": max(1, round(prompt_ms * 1_000_000)),
            "eval_duration": max(1, round(generate_ms * 1_000_000)),
        }


def rfc3339(unix_ns: int) -> str:
    """UTC with nine digits of a second, as Go writes it."""
    seconds, rest = divmod(unix_ns, SECOND_NS)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09}Z"


class WholeCalls:
    """Holds back the call that is being made. Of one whose arguments are no object they come out as text."""

    def __init__(self) -> None:
        self._open: CallBegin | None = None
        self._arguments: list[str] = []

    def feed(self, parts: Sequence[Part], is_last: bool) -> tuple[list[Part], list[OllamaCallAnswer]]:
        """What is no part of a call, and the calls that are complete now."""
        others: list[Part] = []
        calls: list[OllamaCallAnswer] = []
        for part in parts:
            if isinstance(part, CallArguments):
                self._arguments.append(part.text)
                continue
            self._close(others, calls)
            if isinstance(part, CallBegin):
                self._open = part
            else:
                others.append(part)
        if is_last:
            self._close(others, calls)
        return others, calls

    def _close(self, others: list[Part], calls: list[OllamaCallAnswer]) -> None:
        call, text = self._open, "".join(self._arguments)
        self._open, self._arguments = None, []
        given = whole_object(text)
        if call is not None and given is not None:
            calls.append(OllamaCallAnswer(call.id, OllamaCalledAnswer(call.index, call.name, given)))
        elif text:
            others.append(text)


@dataclass
class OllamaWriter(AnswerWriter):
    """Lines and answers of one request. kind: of its route's lines. alternatives: None = no logprobs."""

    model: str
    count: TokenCount
    choice: ParsedChoice
    kind: LineKind
    stopwatch: Stopwatch
    alternatives: int | None
    calls: WholeCalls = field(default_factory=WholeCalls)
    whole: Said = field(default_factory=Said)
    finish: DoneReason = "stop"
    timings: RequestTimings | None = None

    def chunks(self, deltas: Sequence[ChoiceDelta]) -> list[OllamaLine]:
        """A line per delta that says something. Logprobs of tokens without text go with what follows."""
        found = [self._take(number, delta) for number, delta in deltas]
        for said in found:
            self.whole.add(said)
        return [self._line(said) for said in found if said]

    def last_chunks(self) -> list[OllamaLine]:
        return [self._ended(Said())]

    def failure(self, error: HexserveError) -> list[OllamaError]:
        return [OllamaError(from_engine(error).message)]

    def answer(self) -> OllamaLine:
        line = self._ended(self.whole)
        if self.choice.entries:
            line.logprobs = self.choice.entries
        return line

    def _take(self, number: int, delta: Delta) -> Said:
        self.count.add(number, delta)
        others, calls = self.calls.feed(self.choice.take(delta), delta.finish is not None)
        if delta.finish is not None:
            self.finish, self.timings = FINISH_NAMES[delta.finish], delta.timings
        thoughts = "".join(part.text for part in others if isinstance(part, Thought))
        return Said("".join(part for part in others if isinstance(part, str)), thoughts, calls)

    def _line(self, said: Said) -> OllamaLine:
        line = self.kind.of(self.model, said)
        if self.alternatives is not None and self.choice.logprobs:
            line.logprobs = self.choice.taken_logprobs(self.alternatives)
        return line

    def _ended(self, said: Said) -> OllamaLine:
        line, usage = self._line(said), self.count.usage()
        line.done, line.done_reason = True, self.finish
        for name, nanoseconds in self.stopwatch.durations(time.perf_counter_ns(), self.timings).items():
            setattr(line, name, nanoseconds)
        line.prompt_eval_count, line.eval_count = usage.prompt_tokens, usage.completion_tokens
        return line
