"""One server that speaks the OpenAI streaming API: its first model, and answers piece by piece."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import httpx

from server.commands.http_client.address import Unreachable, headers_for, may_use_proxy, root_address
from server.commands.http_client.event_stream import (
    DONE,
    BrokenStream,
    EventDecoder,
    Piece,
    error_message,
    read_piece,
)

KEEP_ALIVE_S = 2.0


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
        """Drop the connections."""
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
        try:
            response = await self._http.get(path)
        except httpx.HTTPError:
            return None
        return response.text if response.status_code == 200 else None

    def stream(
        self, messages: Sequence[Mapping[str, str]], fields: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[Piece, float], None]:
        """One chat answer as it comes: each piece with the `time.perf_counter()` at which its bytes were there.

        fields: of the request, beside model, messages and streaming. An error event is a piece. Raises AnswerFailed.
        """
        return self._pieces("v1/chat/completions", {"messages": messages, **fields})

    def complete(
        self, token_ids: Sequence[int], fields: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[Piece, float], None]:
        """The continuation of a prompt of token ids, as `stream` gives it."""
        return self._pieces("v1/completions", {"prompt": token_ids, **fields})

    async def _pieces(self, path: str, fields: Mapping[str, Any]) -> AsyncGenerator[tuple[Piece, float], None]:
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}}
        status = 0
        try:
            async with self._http.stream("POST", path, json=body | dict(fields)) as response:
                status = response.status_code
                if status != 200:
                    raise await _refusal(response)
                decoder = EventDecoder()
                async for received in response.aiter_bytes():
                    now = time.perf_counter()
                    for payload in decoder.feed(received):
                        if payload != DONE:
                            yield read_piece(payload), now
        except (httpx.HTTPError, BrokenStream) as error:
            raise AnswerFailed(f"{type(error).__name__}: {error}".rstrip(": "), status) from error


async def _refusal(response: httpx.Response) -> AnswerRefused:
    await response.aread()
    try:
        message = error_message(response.json())
    except ValueError:
        message = response.text[:200]
    return AnswerRefused(message, response.status_code, response.headers.get("retry-after", ""))
