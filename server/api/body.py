"""Request bodies: size, time, media type, encoding, depth and numbers are checked before pydantic reads them."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from server.generation.stream import PATHS, RESUMABLE, unwrapped
from server.http.errors import Refusal, refuse
from server.http.fields import Body

Checked = TypeVar("Checked", bound=Body)
MAX_DEPTH = 64
MAX_KEYS = 4096  # of one object: pydantic reports every unknown key
MAX_CONTAINERS = 65_536
# One at least comes with every POST of a browser, and no page can omit it.
BROWSER_HEADERS = ("origin", "sec-fetch-site")
CLOSE = (("Connection", "close"),)  # the rest of the body stays unread, so the connection cannot be used again


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Largest body, and how long it may take to arrive. `create_app` keeps them as `app.state.body_limits`."""

    size_bytes: int
    takes_resumptions: bool = False
    timeout_s: float = 30.0


class BoundedRequest(Request):
    """A request whose body is read within the app's BodyLimits and parsed without surprises."""

    async def body(self) -> bytes:
        """The whole body; Refusal 400 (empty), 408, 413 or 415."""
        if not hasattr(self, "_body"):
            limits: BodyLimits = self.app.state.body_limits
            await self.bounded_body(limits.size_bytes, limits.timeout_s)
            if not self._body:
                raise refuse("The request body is empty; a JSON object is needed.")
        return self._body

    async def bounded_body(self, size_bytes: int, timeout_s: float) -> None:
        self._check_headers(size_bytes)
        try:
            async with asyncio.timeout(timeout_s):
                self._body = await self._read(size_bytes)
        except TimeoutError:
            message = f"The body did not arrive within {timeout_s:g} s."
            raise refuse(message, status=408, headers=CLOSE) from None

    async def json(self) -> Any:
        """The body as a JSON object; Refusal 400 for anything else. A resumption is kept in the request's state."""
        body = parse_object(await self.body())
        if self._media_type != RESUMABLE:
            return body
        request, self.scope.setdefault("state", {})["resumption"] = unwrapped(body)
        return request

    @property
    def _media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def _check_headers(self, limit: int) -> None:
        if self.headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise refuse("Compressed request bodies are not accepted: leave out Content-Encoding.", status=415)
        takes = self.app.state.body_limits.takes_resumptions and self.url.path in PATHS
        if self._media_type != "application/json" and not (takes and self._media_type == RESUMABLE):
            raise refuse("The Content-Type must be application/json.", status=415)
        self._check_length(limit)

    def _check_length(self, limit: int) -> None:
        length = self.headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise refuse("The Content-Length header is not a number.")
        if len(length) > 18 or int(length) > limit:
            raise _too_large(limit)

    async def _read(self, limit: int) -> bytes:
        chunks = bytearray()
        async for chunk in self.stream():
            chunks += chunk
            if len(chunks) > limit:
                raise _too_large(limit)
        return bytes(chunks)


class BoundedRoute(APIRoute):
    request_type = BoundedRequest

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            try:
                return await handle(self.request_type(request.scope, request.receive))
            except ClientDisconnect:
                raise refuse("The client closed the connection.") from None

        return bounded


class UntypedRoute(BoundedRoute):
    """Takes a body as JSON whatever type it says it has, as Ollama does; half of its clients say none.
    Not so from a browser: a page of another site may send plain types, or none, without asking before."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def typed(request: Request) -> Response:
            if not any(name in request.headers for name in BROWSER_HEADERS):
                kept = [pair for pair in request.scope["headers"] if pair[0] != b"content-type"]
                request.scope["headers"] = [*kept, (b"content-type", b"application/json")]
            return await handle(Request(request.scope, request.receive))

        return typed


def validated(kind: type[Checked], fields: dict[str, Any]) -> Checked:
    """The fields, each checked; an error names the field as any other body's does."""
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise RequestValidationError(error.errors(), body=fields) from None


def parse_object(body: bytes) -> dict[str, Any]:
    """Parse a JSON object: strict UTF-8, no NaN, no lone surrogate, no huge number, at most MAX_DEPTH levels."""
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise refuse("The request body is nested too deeply.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise refuse(f"The request body is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise refuse("The request body must be a JSON object.")
    _check_shape(value)
    return value


def _check_shape(value: dict[str, Any]) -> None:
    level: list[dict[str, Any] | list[Any]] = [value]
    containers = 0
    for _ in range(MAX_DEPTH):
        containers += len(level)
        if containers > MAX_CONTAINERS:
            raise refuse(f"The request body has more than {MAX_CONTAINERS} arrays and objects.")
        inner: list[dict[str, Any] | list[Any]] = []
        for item in level:
            if isinstance(item, dict) and len(item) > MAX_KEYS:
                raise refuse(f"An object of the request body has {len(item)} keys; {MAX_KEYS} are allowed.")
            children = item.values() if isinstance(item, dict) else item
            inner += [child for child in children if isinstance(child, dict | list)]
        if not inner:
            return
        level = inner
    raise refuse(f"The request body is nested too deeply: {MAX_DEPTH} levels are allowed.")


def _too_large(limit: int) -> Refusal:
    return refuse(f"The request body is larger than {limit} bytes.", status=413, headers=CLOSE)
