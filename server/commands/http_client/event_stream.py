"""Reading a streamed answer: server-sent events to payloads, payloads to what they carry. No I/O.

Format of the stream: https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
"""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

DONE = "[DONE]"


class BrokenStream(Exception):
    """The stream holds something that is no chunk of an OpenAI-style answer."""


class EventDecoder:
    """Bytes in pieces of any size -> the data of each complete event. Lines may end in LF, CR or CRLF."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""
        self._data: list[str] = []
        self._after_return = False  # the last character was CR, so an LF right after it belongs to it

    def feed(self, received: bytes) -> list[str]:
        """Take the next bytes; returns the data of every event they complete, in order."""
        text = self._decoder.decode(received)
        if self._after_return and text:
            text = text.removeprefix("\n")
            self._after_return = False
        self._after_return = self._after_return or text.endswith("\r")
        *lines, self._line = (self._line + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return [event for line in lines if (event := self._end_line(line)) is not None]

    def _end_line(self, line: str) -> str | None:
        if line:
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
            return None
        if not self._data:
            return None
        event = "\n".join(self._data)
        self._data = []
        return event


@dataclass(frozen=True, slots=True)
class StreamedUsage:
    """Token counts as the server reports them; `cached` of the prompt tokens came from its prefix cache."""

    prompt: int
    completion: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event carries. `error` is the message of an error event, empty otherwise."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: StreamedUsage | None = None
    error: str = ""

    @property
    def has_output(self) -> bool:
        """True when a token became visible to the reader."""
        return bool(self.text or self.reasoning)


def read_piece(payload: str) -> Piece:
    """One chunk of a chat or text completion. Raises BrokenStream when it is neither a chunk nor an error."""
    try:
        chunk = msgspec.json.decode(payload)
    except msgspec.DecodeError as error:
        raise BrokenStream(f"not JSON: {payload[:200]}") from error
    if not isinstance(chunk, dict):
        raise BrokenStream(f"not an object: {payload[:200]}")
    if chunk.get("error"):
        return Piece(error=error_message(chunk))
    choices = chunk.get("choices")
    if not isinstance(choices, list):
        raise BrokenStream(f"no choices: {payload[:200]}")
    first = cast(dict[str, Any], choices[0]) if choices and isinstance(choices[0], dict) else {}
    delta = first.get("delta")
    source = delta if isinstance(delta, dict) else first
    return Piece(
        text=_text(source, "content") or _text(source, "text"),
        reasoning=_text(source, "reasoning_content"),
        finish_reason=_text(first, "finish_reason") or None,
        usage=_usage(chunk.get("usage")),
    )


def error_message(body: object) -> str:
    """The message of an OpenAI-style error body, or the start of whatever else came."""
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return cast(str, error["message"])
    return str(error if error else body)[:200]


def _text(source: Mapping[str, Any], key: str) -> str:
    value = source.get(key)
    return value if isinstance(value, str) else ""


def _usage(given: object) -> StreamedUsage | None:
    if not isinstance(given, dict):
        return None
    details = given.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = [given.get("prompt_tokens"), given.get("completion_tokens"), cached]
    prompt, completion, known_cached = (count if isinstance(count, int) else 0 for count in counts)
    return StreamedUsage(prompt, completion, known_cached)
