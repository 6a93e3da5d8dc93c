"""The outermost layer: a request id on every answer, one log line per request, a 500 for what nothing else caught."""

import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import ANTHROPIC_FORMAT, INTERNAL, bounded, request_format
from server.middleware.checks import REQUESTS, send_error
from server.observability.metrics import RequestFacts, watched

ACCESS_LOGGER = "hexserve.access"
_log = logging.getLogger("hexserve")
_access = logging.getLogger(ACCESS_LOGGER)
_REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_RETRY = re.compile(r"[0-9]{1,3}", re.ASCII)
LOGGED_PATH = 200
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})
SWITCHED, REFUSED = 101, 403  # of a WebSocket that is accepted, or closed before; uvicorn sends them
_STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")
CLIENT_LEFT_STATUS = 499  # nginx's; nobody receives it, but the log shows it
Answered = Callable[[str, str, int], None]


@dataclass(slots=True)
class AccessRecord:
    """A request, filled until it has ended. `at`: Unix seconds; `path` is bounded and clean; key, retry and trace_id
    may be ''. status 0: the client left before an answer began."""

    method: str
    path: str
    request_id: str
    retry: str
    facts: RequestFacts
    at: float = 0.0
    status: int = 0
    milliseconds: float = 0.0
    key: str = ""
    has_left: bool = False
    trace_id: str = ""


def text_line(record: AccessRecord) -> str:
    text = f"{record.method} {record.path} {record.status} {record.milliseconds:.1f}ms {record.request_id}"
    accepted, drafted = record.facts.guesses
    guesses = f"{accepted}/{drafted}" if drafted else ""
    named = {"key": record.key, "guesses": guesses, "retry": record.retry, "trace": record.trace_id}
    text += "".join(f" {name}={value}" for name, value in named.items() if value)
    return text + " client left" if record.has_left else text


def json_line(record: AccessRecord) -> str:
    """One JSON object: the fields of docs/reference/observability.md, without those that a request does not have."""
    fields: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "duration_ms": round(record.milliseconds, 1),
        "request_id": record.request_id,
        "client_left": record.has_left,
    }
    named = {"key": record.key, "retry": int(record.retry or 0), "trace_id": record.trace_id}
    fields |= {name: value for name, value in named.items() if value}
    return msgspec.json.encode(fields | generation_fields(record.facts)).decode()


def generation_fields(facts: RequestFacts) -> dict[str, Any]:
    """What a generation adds; token counts and times of choices are there once a choice has come to its end."""
    launched = facts.launched
    if launched is None:
        return {}
    fields: dict[str, Any] = {name: getattr(launched, name) for name in ("model", "id", "choices", "prompt_tokens")}
    if facts.ended:
        fields["finish_reasons"] = dict(Counter(end.reason for end in facts.ended))
    if facts.first_token_at is not None:
        fields["first_token_ms"] = round(1000 * (facts.first_token_at - launched.at), 1)
    return fields | _timing_fields(facts)


def _timing_fields(facts: RequestFacts) -> dict[str, Any]:
    """Tokens of all choices; of the times the longest, as choices run side by side."""
    timings = facts.timings
    if not timings:
        return {}
    fields: dict[str, Any] = {
        "completion_tokens": sum(each.generated_tokens for each in timings),
        "cached_tokens": sum(each.cached_tokens for each in timings),
        "queue_ms": round(max(each.queue_ms for each in timings), 1),
        "prefill_ms": round(max(each.prompt_ms for each in timings), 1),
        "decode_ms": round(max(each.generate_ms for each in timings), 1),
        "preemptions": sum(each.preemptions for each in timings),
    }
    accepted, drafted = facts.guesses
    return fields | ({"drafted_tokens": drafted, "accepted_tokens": accepted} if drafted else {})


WRITERS: Mapping[str, Callable[[AccessRecord], str]] = {"text": text_line, "json": json_line}
Write = Callable[[AccessRecord], str]


class AccessLog:
    """ASGI layer around the whole app. Neither prompts nor control characters reach the log. write: None = no lines."""

    def __init__(self, app: ASGIApp, answered: Answered, routes: Sequence[Route], write: Write | None) -> None:
        self._app, self._answered, self._routes = app, answered, routes
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in REQUESTS:
            await self._app(scope, receive, send)
            return
        logged = _RequestLog(scope, receive, send)
        record = logged.record
        try:
            await self._app(scope, logged.receive, logged.send)
        except Exception:  # the server process's one broad handler
            _log.exception("request %s failed inside the server", record.request_id)
            if record.status:
                raise  # the answer has begun: only closing the connection tells the client
            await send_error(logged.send, scope, INTERNAL)
        finally:
            self._answered(*logged.label(self._routes))
            if self._write is not None:
                logged.end()
                _access.info("%s", self._write(record))


class _RequestLog:
    """What is logged of one request. Passes its messages on, and notes status, time and a client that leaves."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._has_ended = False
        headers, facts = Headers(scope=scope), watched(scope)
        method, path = scope.get("method", "GET"), bounded(scope["path"], LOGGED_PATH)  # a WebSocket begins as a GET
        retry = headers.get("x-stainless-retry-count", "")
        retry = retry if _RETRY.fullmatch(retry) and retry != "0" else ""
        self.record = AccessRecord(method, path, request_id(headers), retry, facts)
        scope.setdefault("state", {})["request_id"] = self.record.request_id
        self._names = ("x-request-id", "request-id") if request_format(scope) is ANTHROPIC_FORMAT else ("x-request-id",)

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._has_ended:
            self.record.has_left = True
        return message

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in _STARTS:
            self.record.status = message.get("status", SWITCHED)
            headers = MutableHeaders(scope=message)
            for name in self._names:
                headers[name] = self.record.request_id
            headers["openai-processing-ms"] = str(round(self._milliseconds()))
        elif kind == "websocket.close" and not self.record.status:
            self.record.status = REFUSED
        elif kind == "http.response.body" and not message.get("more_body", False):
            self._has_ended = True
        await self._send(message)

    def label(self, routes: Sequence[Route]) -> tuple[str, str, int]:
        """Method, path and status. Callers cannot make up new ones: what is not ours is "other"."""
        method, path, facts = self.record.method, self._scope["path"], self.record.facts
        facts.handler = next((route.path for route in routes if route.path_regex.match(path)), "other")
        facts.status = self.record.status or CLIENT_LEFT_STATUS
        return method if method in METHODS else "other", facts.handler, facts.status

    def end(self) -> None:
        state, record = self._scope.get("state", {}), self.record
        record.at, record.milliseconds = time.time(), self._milliseconds()
        record.key, record.trace_id = state.get("log_caller", ""), state.get("trace_id", "")

    def _milliseconds(self) -> float:
        return 1000 * (time.perf_counter() - self.record.facts.started_at)


def request_id(headers: Mapping[str, str]) -> str:
    """The caller's own id when it is harmless, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
