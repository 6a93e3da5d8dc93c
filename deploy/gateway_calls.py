"""What a gateway of many servers knows of a request: what its prompt is, and how far its answer has come. Pure.

Used by ray_serve.py. Streams of RESUMABLE_PATHS go on at another server wherever they break off; other requests are
sent again as long as nothing of their answer has reached the client.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from server.generation.stream import COMMENT, RESUMABLE, DeliveredChoice, Resumption, noted

RESPONSES = "/v1/responses"
RESUMABLE_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", RESPONSES})
BETWEEN_SERVERS = frozenset({"host", "content-length", "connection", "transfer-encoding", "keep-alive", "upgrade"})
EVENT_END = b"\n\n"
DONE = b"data: [DONE]"


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request on its way to a server. prompt: what Ray's prefix-aware router compares; never empty."""

    method: str
    path: str  # with its query
    headers: tuple[tuple[str, str], ...]
    body: bytes
    prompt: str


class Exchange:
    """A request and what its client has of the answer; `call` is what to send now, also after a loss."""

    def __init__(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, may_store: bool = False
    ) -> None:
        """may_store: the servers store responses, each its own."""
        self._method, self._path, self._body = method, path, body
        self._headers = tuple(pair for pair in headers.items() if pair[0].lower() not in BETWEEN_SERVERS)
        self._fields = _object(body)
        self._prompt = prompt_text(path, self._fields)
        is_stream = method == "POST" and self._fields.get("stream") is True
        is_known = _goes_on(path.partition("?")[0], self._fields, may_store)
        self._resumption = Resumption.new() if is_stream and is_known else None
        self._held = b""  # events that no comment has closed yet
        self._partial = b""  # the beginning of an event

    @property
    def is_resumable(self) -> bool:
        """Whether an answer that breaks off can be gone on with."""
        return self._resumption is not None

    def call(self) -> Call:
        """The request, with what was delivered of its answer if that can be gone on with."""
        self._held = self._partial = b""
        if self._resumption is None:
            return Call(self._method, self._path, self._headers, self._body, self._prompt)
        body = msgspec.json.encode({"request": self._fields, "resumption": self._resumption})
        others = tuple(pair for pair in self._headers if pair[0].lower() != "content-type")
        return Call(self._method, self._path, (*others, ("content-type", RESUMABLE)), body, self._prompt)

    def take(self, data: bytes) -> bytes:
        """Bytes of the answer: what may be passed on of them now, without the comments meant for the gateway."""
        if self._resumption is None:
            return data
        *events, self._partial = (self._partial + data).split(EVENT_END)
        passed = b""
        for event in events:
            told = noted(event) if event.startswith(COMMENT) else None
            if told is not None:
                passed += self._delivered(told)
            elif event.startswith(b":") and not self._held:
                passed += event + EVENT_END
            else:
                self._held += event + EVENT_END
                passed += self._all_held() if event == DONE else b""
        return passed

    def rest(self) -> bytes:
        """What is left when the answer has ended by itself."""
        left, self._partial = self._partial, b""
        return self._all_held() + left

    def _delivered(self, told: tuple[DeliveredChoice, ...]) -> bytes:
        assert self._resumption is not None
        self._resumption = self._resumption.with_more(told)
        return self._all_held()

    def _all_held(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _goes_on(path: str, fields: Mapping[str, Any], may_store: bool) -> bool:
    """Whether another server can go on with a stream. A response that may be stored is its own server's."""
    return path in RESUMABLE_PATHS and (path != RESPONSES or not may_store or fields.get("store") is False)


def prompt_text(path: str, fields: Mapping[str, Any]) -> str:
    """The request's prompt as a text that begins as its tokens do: tools, then messages in order, or the prompt."""
    if "messages" in fields:
        parts = [fields.get("system"), fields.get("tools"), *_list(fields["messages"])]
        return "\n".join(json.dumps(part, ensure_ascii=False) for part in parts if part) or path
    prompt = fields.get("prompt", fields.get("input"))
    if isinstance(prompt, str):
        return prompt or path
    return ",".join(json.dumps(part, ensure_ascii=False) for part in _list(prompt)) or path


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _object(body: bytes) -> dict[str, Any]:
    """The body's fields; none when it is no JSON object, which the server will say."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
