"""The outermost layer: a request id on every answer, one log line per request, a 500 for what nothing else caught."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.access_record import ACCESS_LOGGER, AccessRecord
from server.http.error_formats import ANTHROPIC_FORMAT, request_format
from server.http.errors import INTERNAL, bounded
from server.http.guard.layer import send_error
from server.http.request_facts import watched

_log = logging.getLogger("hexserve")
_access = logging.getLogger(ACCESS_LOGGER)
_REQUEST_ID = re.compile(r"[\w.-]{1,128}", re.ASCII)
_RETRY = re.compile(r"[0-9]{1,3}", re.ASCII)
LOGGED_PATH = 200
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS"})
CLIENT_LEFT_STATUS = 499  # nginx's; nobody receives it, but the log shows it

Answered = Callable[[str, str, int], None]
Write = Callable[[AccessRecord], str]


class AccessLog:
    """ASGI layer around the whole app. Neither prompts nor control characters reach the log.

    write: the line of a request, None to write none.
    """

    def __init__(self, app: ASGIApp, answered: Answered, routes: Sequence[Route], write: Write | None) -> None:
        self._app = app
        self._answered = answered
        self._routes = routes
        self._write = write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        logged = _RequestLog(scope, receive, send)
        try:
            await self._app(scope, logged.receive, logged.send)
        except Exception:  # the server process's one broad handler
            _log.exception("request %s failed inside the server", logged.request_id)
            if logged.status:
                raise  # the answer has begun: only closing the connection tells the client
            await logged.send_internal_error()
        finally:
            self._answered(*logged.label(self._routes))
            if self._write is not None:
                _access.info("%s", self._write(logged.record()))


class _RequestLog:
    """What is logged of one request. Passes its messages on, and notes status, time and a client that leaves."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.status = 0
        self._scope = scope
        self._receive = receive
        self._send = send
        self._facts = watched(scope)
        self._has_ended = False
        self._has_left = False
        headers = Headers(scope=scope)
        self.request_id = request_id(headers)
        scope.setdefault("state", {})["request_id"] = self.request_id
        self._names = ("x-request-id", "request-id") if request_format(scope) is ANTHROPIC_FORMAT else ("x-request-id",)
        retry = headers.get("x-stainless-retry-count", "")
        self._retry = retry if _RETRY.fullmatch(retry) and retry != "0" else ""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect" and not self._has_ended:
            self._has_left = True
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name in self._names:
                headers[name] = self.request_id
            headers["openai-processing-ms"] = str(round(self._milliseconds()))
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._has_ended = True
        await self._send(message)

    async def send_internal_error(self) -> None:
        await send_error(self.send, self._scope, INTERNAL)

    def label(self, routes: Sequence[Route]) -> tuple[str, str, int]:
        """Method, path and status. Callers cannot make up new ones: what is not ours is "other"."""
        method, path = self._scope["method"], self._scope["path"]
        handler = next((route.path for route in routes if route.path_regex.match(path)), "other")
        self._facts.handler, self._facts.status = handler, self.status or CLIENT_LEFT_STATUS
        return method if method in METHODS else "other", handler, self._facts.status

    def record(self) -> AccessRecord:
        """What is written of it."""
        state = self._scope.get("state", {})
        return AccessRecord(
            at=time.time(),
            method=self._scope["method"],
            path=bounded(self._scope["path"], LOGGED_PATH),
            status=self.status,
            milliseconds=self._milliseconds(),
            request_id=self.request_id,
            key=state.get("log_caller", ""),
            retry=self._retry,
            has_left=self._has_left,
            trace_id=state.get("trace_id", ""),
            facts=self._facts,
        )

    def _milliseconds(self) -> float:
        return 1000 * (time.perf_counter() - self._facts.started_at)


def request_id(headers: Mapping[str, str]) -> str:
    """The caller's own id when it is harmless, else a new one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else f"req_{uuid.uuid4().hex}"
