"""Two layers around all routes: size of the head, Host and HEAD; inside starlette's CORS, API key and rate limits."""

import logging
import math
import secrets
import time
from collections.abc import Callable
from functools import partial

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import WireError, bounded, echo, encoded_error
from server.middleware import auth
from server.middleware.origins import ANY, host_is_allowed, is_loopback, same_origin

_log = logging.getLogger("hexserve")
OPEN_PATHS = frozenset({"/health", "/health/live"})  # liveness: they say nothing but the state
HEADER_BYTES = 32 * 1024  # larger heads are answered 431
MAX_HEADERS = 100
REQUESTS = ("http", "websocket")
Pairs = tuple[tuple[str, str], ...]


class HeadChecks:
    """ASGI layer: a head that is too large gets 431, a foreign Host 403. HEAD is asked as GET. binds_loopback: the Host
    is checked. origins: may open a WebSocket; of requests starlette's CORS sees to that."""

    def __init__(
        self,
        app: ASGIApp,
        binds_loopback: bool,
        allowed_hosts: frozenset[str],
        limit_bytes: int = HEADER_BYTES,
        origins: frozenset[str] = frozenset(),
    ) -> None:
        self._app, self._binds_loopback, self._allowed_hosts = app, binds_loopback, allowed_hosts
        self._limit_bytes, self._origins = limit_bytes, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in REQUESTS:
            return await self._app(scope, receive, send)
        if scope.get("method") == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        headers = Headers(scope=scope)
        refusal = self._check_size(scope, headers) or self._check_host(scope, headers)
        if refusal is None and scope["type"] == "websocket":
            refusal = self._check_origin(headers)
        return await (self._app(scope, receive, send) if refusal is None else send_error(send, scope, refusal))

    def _check_size(self, scope: Scope, headers: Headers) -> WireError | None:
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        size += sum(len(name) + len(value) + 4 for name, value in headers.raw)
        if size <= self._limit_bytes and len(headers.raw) <= MAX_HEADERS:
            return None
        most = f"{self._limit_bytes} bytes or {MAX_HEADERS} headers"
        return WireError(431, f"The request line and headers are larger than {most}.")

    def _check_host(self, scope: Scope, headers: Headers) -> WireError | None:
        listener = scope.get("server")
        on_loopback = self._binds_loopback and listener is not None and is_loopback(listener[0])
        host = headers.get("host")
        if host_is_allowed(host, self._allowed_hosts, on_loopback):
            return None
        message = f"The Host {echo(host)} is not served here. The setting allowed_hosts lists the names that are."
        return WireError(403, message, code="host_not_allowed")

    def _check_origin(self, headers: Headers) -> WireError | None:
        """A browser lets any page open a WebSocket, and says which page it is."""
        origin = headers.get("origin")
        if origin is None or {ANY, origin} & self._origins or same_origin(origin, headers.get("host")):
            return None
        message = f"The origin {echo(origin)} may not connect. The setting cors_origins lists the origins that may."
        return WireError(403, message, code="origin_not_allowed")


class Guard:
    """ASGI layer: who asks, and whether it may now. What it refuses gets the error body of its path. No request body is
    read for it. open_paths: read without a key."""

    def __init__(
        self,
        app: ASGIApp,
        keys: auth.KeyRing,
        rates: auth.Rates,
        isolates_cache: bool,
        open_paths: frozenset[str] = OPEN_PATHS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app, self._keys, self._isolates_cache = app, keys, isolates_cache
        self._open_paths = open_paths
        self._limiter = auth.Limiter(rates, clock)
        self._secret = secrets.token_bytes(32)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request or hand it on, with its caller in `scope["state"]["caller"]`."""
        if scope["type"] not in REQUESTS:
            return await self._app(scope, receive, send)
        name = self._caller_name(scope, Headers(scope=scope))
        if isinstance(name, WireError):
            return await send_error(send, scope, name)
        state = scope.setdefault("state", {})
        salt = auth.salt_of(self._secret, name) if self._isolates_cache else b""
        state["caller"] = auth.Caller(name, self._limiter, salt, self._owner(name))
        state["log_caller"] = name if len(self._keys) else ""
        is_counted = scope["type"] == "websocket" or scope["method"] == "POST"
        if not (is_counted and self._limiter.rates.any):
            return await self._app(scope, receive, partial(_send_with, send, lambda: ()))
        if (denial := self._limiter.enter(name)) is not None:
            return await send_error(send, scope, rate_error(denial), self._limiter.headers(name))
        try:  # the headers are asked for when the answer starts
            return await self._app(scope, receive, partial(_send_with, send, partial(self._limiter.headers, name)))
        finally:
            self._limiter.leave(name)

    def _owner(self, name: str) -> str:
        """An open path of a server with keys has no caller."""
        if not len(self._keys):
            return f"address {name}"
        return f"key {self._keys.identity(name)}" if name else ""

    def _caller_name(self, scope: Scope, headers: Headers) -> str | WireError:
        if not len(self._keys):
            return auth.address_name(scope.get("client"))
        if scope["path"] in self._open_paths and scope.get("method") == "GET":
            return ""
        offered = auth.offered_keys(headers, scope.get("subprotocols", ()))
        owner = self._keys.owner(offered)
        if owner is not None:
            return owner
        challenge = (("WWW-Authenticate", "Bearer"),)
        if not offered:
            text = "You didn't provide an API key. Send it in an Authorization header: Bearer YOUR_KEY."
            return WireError(401, text, headers=challenge)
        _log.warning("an API key from %s is not one of ours", bounded(auth.address_name(scope.get("client"))))
        return WireError(401, "Incorrect API key provided.", code="invalid_api_key", headers=challenge)


def rate_error(denial: auth.Denial) -> WireError:
    """429 with Retry-After; denied for the caller's own doing, unlike a full server's 503."""
    wait_s = min(denial.wait_s, auth.LONGEST_WAIT_S)
    retry = (("Retry-After", str(max(1, math.ceil(wait_s)))), ("retry-after-ms", str(max(1, math.ceil(wait_s * 1000)))))
    text = f"{denial.message} Please try again in {max(denial.wait_s, 0.001):.3f} s."
    return WireError(429, text, "rate_limit_error", code="rate_limit_exceeded", headers=retry)


async def send_error(send: Send, scope: Scope, error: WireError, headers: Pairs = ()) -> None:
    """A whole answer in the error format of the path, from outside the routes."""
    status, body = encoded_error(error, scope)
    own = (("content-type", "application/json"), ("content-length", str(len(body))))
    pairs = (*own, *error.headers, *headers)
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in pairs]
    kind = "websocket.http" if scope["type"] == "websocket" else "http"
    await send({"type": f"{kind}.response.start", "status": status, "headers": raw})
    await send({"type": f"{kind}.response.body", "body": body})


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
