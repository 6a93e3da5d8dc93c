"""The layer around all routes. In this order: size of the head, Host, preflight, API key, rate limits, HEAD."""

import logging
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.error_formats import encoded_error
from server.http.errors import WireError, bounded, echo
from server.http.guard.caller import Caller, address_name, salt_of
from server.http.guard.hosts import host_is_allowed, is_loopback
from server.http.guard.keys import KeyRing, offered_keys
from server.http.guard.origins import answer_headers, preflight_headers
from server.http.guard.rates import LONGEST_WAIT_S, Denial, Limiter, Rates

_log = logging.getLogger("hexserve")
OPEN_PATHS = frozenset({"/health", "/health/live"})  # liveness: they say nothing but the state
MAX_HEADERS = 100

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class GuardRules:
    """Which requests are let through.

    binds_loopback: the listener has a loopback address, so the Host is checked. open_paths: read without a key.
    """

    rates: Rates
    binds_loopback: bool
    allowed_hosts: frozenset[str]
    origins: frozenset[str]
    header_limit_bytes: int
    isolates_cache: bool
    open_paths: frozenset[str] = OPEN_PATHS


class Guard:
    """ASGI layer. What it refuses gets the error body of its path; no request body is read for it."""

    def __init__(
        self, app: ASGIApp, rules: GuardRules, keys: KeyRing, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._app = app
        self._rules = rules
        self._keys = keys
        self._limiter = Limiter(rules.rates, clock)
        self._secret = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or hand it on, with its caller in `scope["state"]["caller"]`."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        shared = answer_headers(headers.get("origin"), self._rules.origins)
        send = _without_body(send) if scope["method"] == "HEAD" else send
        refusal = self._check_head(scope, headers) or self._check_host(scope, headers)
        if refusal is not None:
            await send_error(send, scope, refusal, shared)
            return
        preflight = preflight_headers(scope["method"], headers, self._rules.origins)
        if preflight is not None:
            await send_start(send, 204, preflight)
            await send({"type": "http.response.body", "body": b""})
            return
        name = self._caller_name(scope, headers)
        if isinstance(name, WireError):
            await send_error(send, scope, name, shared)
            return
        await self._pass_on(scope, receive, send, name, shared)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send, name: str, shared: Pairs) -> None:
        state = scope.setdefault("state", {})
        salt = salt_of(self._secret, name) if self._rules.isolates_cache else b""
        state["caller"] = Caller(name, self._limiter, salt, self._owner(name))
        state["log_caller"] = name if len(self._keys) else ""
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        if scope["method"] != "POST" or not self._rules.rates.any:
            await self._app(scope, receive, partial(_send_with, send, lambda: shared))
            return
        denial = self._limiter.enter(name)
        if denial is not None:
            await send_error(send, scope, rate_error(denial), (*shared, *self._limiter.headers(name)))
            return
        try:
            extra = lambda: (*shared, *self._limiter.headers(name))  # noqa: E731 (asked when the answer starts)
            await self._app(scope, receive, partial(_send_with, send, extra))
        finally:
            self._limiter.leave(name)

    def _owner(self, name: str) -> str:
        """An open path of a server with keys has no caller."""
        if not len(self._keys):
            return f"address {name}"
        return f"key {self._keys.identity(name)}" if name else ""

    def _check_head(self, scope: Scope, headers: Headers) -> WireError | None:
        limit = self._rules.header_limit_bytes
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size += sum(len(name) + len(value) + 4 for name, value in headers.raw)
        if size > limit or len(headers.raw) > MAX_HEADERS:
            return head_too_large(limit)
        return None

    def _check_host(self, scope: Scope, headers: Headers) -> WireError | None:
        listener = scope.get("server")
        on_loopback = self._rules.binds_loopback and listener is not None and is_loopback(listener[0])
        host = headers.get("host")
        if host_is_allowed(host, self._rules.allowed_hosts, on_loopback):
            return None
        message = f"The Host {echo(host)} is not served here. The setting allowed_hosts lists the names that are."
        return WireError(403, message, code="host_not_allowed")

    def _caller_name(self, scope: Scope, headers: Headers) -> str | WireError:
        if not len(self._keys):
            return address_name(scope.get("client"))
        if scope["path"] in self._rules.open_paths and scope["method"] in ("GET", "HEAD"):
            return ""
        offered = offered_keys(headers)
        owner = self._keys.owner(offered)
        if owner is not None:
            return owner
        challenge = (("WWW-Authenticate", "Bearer"),)
        if not offered:
            text = "You didn't provide an API key. Send it in an Authorization header: Bearer YOUR_KEY."
            return WireError(401, text, headers=challenge)
        _log.warning("an API key from %s is not one of ours", bounded(address_name(scope.get("client"))))
        return WireError(401, "Incorrect API key provided.", code="invalid_api_key", headers=challenge)


def rate_error(denial: Denial) -> WireError:
    """429 with Retry-After; denied for the caller's own doing, unlike a full server's 503."""
    wait_s = min(denial.wait_s, LONGEST_WAIT_S)
    retry = (("Retry-After", str(max(1, math.ceil(wait_s)))), ("retry-after-ms", str(max(1, math.ceil(wait_s * 1000)))))
    text = f"{denial.message} Please try again in {max(denial.wait_s, 0.001):.3f} s."
    return WireError(429, text, "rate_limit_error", code="rate_limit_exceeded", headers=retry)


def head_too_large(limit: int) -> WireError:
    """431: path, query and headers together have a bound."""
    return WireError(431, f"The request line and headers are larger than {limit} bytes or {MAX_HEADERS} headers.")


async def send_error(send: Send, scope: Scope, error: WireError, headers: Pairs = ()) -> None:
    """A whole answer in the error format of the path, from outside the routes."""
    status, body = encoded_error(error, scope)
    own = (("content-type", "application/json"), ("content-length", str(len(body))))
    await send_start(send, status, (*own, *error.headers, *headers))
    await send({"type": "http.response.body", "body": body})


async def send_start(send: Send, status: int, headers: Pairs) -> None:
    """The head of an answer."""
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def _send_with(send: Send, headers: Callable[[], Pairs], message: Message) -> None:
    if message["type"] == "http.response.start":
        answer = MutableHeaders(scope=message)
        answer.setdefault("x-content-type-options", "nosniff")
        for name, value in headers():
            answer.append(name, value)
    await send(message)


def _without_body(send: Send) -> Send:
    """HEAD: the head of the GET's answer, Content-Length included, and nothing after it."""

    has_ended = False

    async def head_only(message: Message) -> None:
        nonlocal has_ended
        if message["type"] != "http.response.body":
            await send(message)
        elif not has_ended:
            has_ended = True
            await send({"type": "http.response.body", "body": b""})

    return head_only
