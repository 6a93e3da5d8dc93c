"""A chat's connection to a server: one streamed answer at a time, and its times."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from server.commands.bench.event_stream import (
    DONE,
    BrokenStream,
    EventDecoder,
    Piece,
    StreamedUsage,
    error_message,
    read_piece,
)
from server.commands.bench.target import Unreachable, headers_for, may_use_proxy, root_address

READ_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 10.0


class AnswerFailed(Exception):
    """The server refused or broke off; the message is its own."""


@dataclass(slots=True)
class Timing:
    """Times of one answer, in seconds since it was asked for; None until known."""

    asked_at: float
    first_s: float | None = None
    last_s: float | None = None
    usage: StreamedUsage | None = None

    def arrived(self, now: float) -> None:
        """Text came at `now`."""
        self.last_s = now - self.asked_at
        self.first_s = self.last_s if self.first_s is None else self.first_s

    def line(self) -> str:
        """For people. Tokens per second count from the question on: small answers come in one piece, at no rate."""
        if self.first_s is None or self.last_s is None:
            return "no text"
        parts = [f"first token {self.first_s * 1000:.0f} ms"]
        if self.usage is not None:
            tokens = self.usage.completion
            parts.insert(0, f"{tokens} tokens in {self.last_s:.2f} s, {tokens / self.last_s:.1f} tokens/s")
            parts.append(f"prompt {self.usage.prompt} ({self.usage.cached} cached)")
        return " | ".join(parts)


class Connection:
    """One server and the model asked on it. Raises Unreachable when nothing usable answers."""

    def __init__(self, url: str, model: str, api_key: str) -> None:
        self.address = root_address(url)
        self._client = httpx.Client(
            base_url=self.address,
            headers=headers_for(api_key),
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=may_use_proxy(self.address),
        )
        self.model = model or self._first_model()

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def _first_model(self) -> str:
        try:
            response = self._client.get("v1/models")
            listed = response.json()
            if response.status_code != 200:
                raise Unreachable(f"{self.address} answers {response.status_code}: {error_message(listed)}")
            return str(listed["data"][0]["id"])
        except httpx.TransportError as error:
            raise Unreachable(
                f"nothing answers at {self.address} ({error}). Start a server with 'hexserve serve demo', "
                "or chat with a bundle: 'hexserve chat --bundle demo'"
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise Unreachable(f"{self.address}/v1/models is no list of models; name one with --model") from error

    def stream(self, messages: list[dict[str, str]], fields: Mapping[str, float], timing: Timing) -> Iterator[Piece]:
        """An answer piece by piece as it comes, noted in `timing`. Raises AnswerFailed."""
        body: dict[str, Any] = {"model": self.model, "messages": messages, "stream": True, **fields}
        body["stream_options"] = {"include_usage": True}
        try:
            with self._client.stream("POST", "v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    raise AnswerFailed(_refusal(response))
                decoder = EventDecoder()
                for received in response.iter_bytes():
                    for payload in decoder.feed(received):
                        if payload != DONE:
                            yield self._read(payload, timing)
        except httpx.HTTPError as error:
            raise AnswerFailed(f"the connection broke: {error or type(error).__name__}") from error
        except BrokenStream as error:
            raise AnswerFailed(f"the stream is broken: {error}") from error

    def _read(self, payload: str, timing: Timing) -> Piece:
        piece = read_piece(payload)
        if piece.error:
            raise AnswerFailed(piece.error)
        if piece.has_output:
            timing.arrived(time.perf_counter())
        timing.usage = piece.usage or timing.usage
        return piece


def _refusal(response: httpx.Response) -> str:
    response.read()
    try:
        message = error_message(response.json())
    except ValueError:
        message = response.text[:200]
    wait = response.headers.get("retry-after", "")
    return f"{response.status_code}: {message}" + (f" Try again in {wait} s." if wait else "")
