"""One server that speaks the OpenAI streaming API: its first model, and answers piece by piece."""

import re
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import msgspec

from engine.errors import UnusableInput
from engine.sources.names import MODEL_SUFFIXES, Address, LocalPath, read_name
from server.commands.exit_codes import CommandFailed
from server.middleware.origins import is_loopback

_WITH_PORT = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d+(?:/|$)")
KEEP_ALIVE_S = 2.0


class Unreachable(CommandFailed):
    """Nothing usable answers at an address; the message says what came instead."""


class UnusableAddress(Unreachable, UnusableInput):
    """No request can be made of the address, or of the key that goes with it."""


def root_address(url: str) -> str:
    """The address without a trailing slash or /v1. Raises UnusableAddress when it is no http address."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        is_usable = parts.scheme in ("http", "https") and bool(httpx.URL(parts.geturl()).host) and parts.port != 0
    except (ValueError, httpx.InvalidURL):  # brackets that do not close, a port that is no port, a name that is none
        is_usable = False
    if not is_usable or not url.isprintable() or " " in url:
        raise UnusableAddress(f"{url!r} is not an http address")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def is_server(text: str) -> bool:
    """Whether a text is a server's address, with its scheme or with a port, and not a model's name."""
    named = read_name(text, ())
    if isinstance(named, Address):
        return not text.partition("?")[0].lower().endswith(MODEL_SUFFIXES)
    return isinstance(named, LocalPath) and ("://" in text or _WITH_PORT.match(text) is not None)


def may_use_proxy(url: str) -> bool:
    """False for this machine's own addresses, which no proxy of the environment can reach."""
    return not is_loopback(urlsplit(url).hostname or "")


def headers_for(api_key: str) -> dict[str, str]:
    """Headers of every request; no compression, which would delay small chunks. Raises UnusableAddress."""
    if not (api_key.isascii() and api_key.isprintable()):
        raise UnusableAddress("the API key must be printable ASCII characters")
    return {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})


class BrokenStream(Exception):
    """The stream holds something that is no chunk of an OpenAI-style answer."""


@dataclass(frozen=True, slots=True)
class StreamedUsage:
    """Token counts as the server reports them; `cached` of the prompt tokens came from its prefix cache."""

    prompt: int
    completion: int
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event carries. tokens: of the answer so far, 0 = not told. error: the message of an error event."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    usage: StreamedUsage | None = None
    error: str = ""
    tokens: int = 0


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
    text, reasoning = _text(source, "content") or _text(source, "text"), _text(source, "reasoning_content")
    usage, timings = _usage(chunk.get("usage")), chunk.get("timings")
    told = timings.get("predicted_n") if isinstance(timings, dict) else 0
    tokens = (usage.completion if usage else 0) or (told if isinstance(told, int) else 0)
    return Piece(text, reasoning, _text(first, "finish_reason") or None, usage, tokens=tokens)


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
    counts = (given.get("prompt_tokens"), given.get("completion_tokens"), cached)
    return StreamedUsage(*(count if isinstance(count, int) else 0 for count in counts))


Arrivals = AsyncGenerator[tuple[Piece, float], None]


class NothingAnswers(Unreachable):
    """No connection, or none that lasted for one answer."""


class AnswerFailed(Exception):
    """A request got no answer, or not a whole one. `status`: of the response, 0 if none came."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class AnswerRefused(AnswerFailed):
    """The server said no; the message is its own. `retry_after`: seconds as it wrote them, '' if it did not."""

    def __init__(self, message: str, status: int, retry_after: str) -> None:
        super().__init__(f"HTTP {status}: {message}", status)
        self.retry_after = retry_after


class ServerClient:
    """The connections to one server. `model` is empty until it is given or found. Used in one event loop only."""

    def __init__(
        self, url: str, api_key: str, model: str, timeout: httpx.Timeout, keep_alive_s: float = KEEP_ALIVE_S
    ) -> None:
        """Raises UnusableAddress."""
        self.address = root_address(url)
        self.model = model
        self._http = httpx.AsyncClient(
            base_url=self.address,
            headers=headers_for(api_key),
            timeout=timeout,
            # Many servers close idle connections after 5 s: one that is used at that very moment loses its request.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=keep_alive_s),
            trust_env=may_use_proxy(self.address),
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def find_model(self) -> None:
        """Take the first model that the server lists, unless one was given. Raises Unreachable."""
        if self.model:
            return
        try:
            response = await self._http.get("v1/models")
            listed = response.json()
            if response.status_code != 200:
                raise Unreachable(f"{self.address} answers {response.status_code}: {error_message(listed)}")
            self.model = str(listed["data"][0]["id"])
        except httpx.HTTPError as error:
            raise NothingAnswers(f"nothing answers at {self.address}: {error or type(error).__name__}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise Unreachable(f"{self.address}/v1/models is no list of models; name one with --model") from error

    async def text_at(self, path: str) -> str | None:
        """What a GET of the path gives; None unless it is answered 200."""
        with suppress(httpx.HTTPError):
            response = await self._http.get(path)
            return response.text if response.status_code == 200 else None
        return None

    def stream(self, messages: Sequence[Mapping[str, str]], fields: Mapping[str, Any]) -> Arrivals:
        """One chat answer as it comes: each piece with the `time.perf_counter()` at which its bytes were there. fields:
        of the request, beside model, messages and streaming. An error event is a piece. Raises AnswerFailed."""
        return self._pieces("v1/chat/completions", {"messages": messages, **fields})

    def complete(self, token_ids: Sequence[int], fields: Mapping[str, Any]) -> Arrivals:
        """The continuation of a prompt of token ids, as `stream` gives it."""
        return self._pieces("v1/completions", {"prompt": token_ids, **fields})

    async def _pieces(self, path: str, fields: Mapping[str, Any]) -> Arrivals:
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        status = 0
        try:
            async with self._http.stream("POST", path, json=body | dict(fields)) as response:
                status = response.status_code
                if status != 200:
                    raise await _refusal(response)
                rest = b""
                async for received in response.aiter_bytes():
                    now = time.perf_counter()
                    *lines, rest = (rest + received).split(b"\n")
                    for line in lines:
                        field, _, data = line.partition(b":")
                        if field == b"data" and data.strip() != b"[DONE]":
                            yield read_piece(data.decode("utf-8", "replace")), now
        except (httpx.HTTPError, BrokenStream) as error:
            raise AnswerFailed(f"{type(error).__name__}: {error}".rstrip(": "), status) from error


async def _refusal(response: httpx.Response) -> AnswerRefused:
    await response.aread()
    try:
        message = error_message(response.json())
    except ValueError:
        message = response.text[:200]
    return AnswerRefused(message, response.status_code, response.headers.get("retry-after", ""))
