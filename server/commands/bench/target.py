"""A server under load: its address, its model, its counters."""

import asyncio
import ipaddress
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from server.commands.bench.answers import MeasuredAnswer, ask
from server.commands.bench.event_stream import error_message
from server.commands.bench.prompts import Message
from server.commands.bench.scrape import Reading, ScrapedCounters, read_metrics

SETTLE_S = 3.0
SETTLE_STEP_S = 0.05


class Unreachable(Exception):
    """Nothing usable answers at an address; the message says what came instead."""


def root_address(url: str) -> str:
    """The address without a trailing slash or /v1. Raises Unreachable when it is no http address."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Unreachable(f"'{url}' is not an http address")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def may_use_proxy(url: str) -> bool:
    """False for this machine's own addresses, which no proxy of the environment can reach."""
    host = urlsplit(url).hostname or ""
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"


def headers_for(api_key: str) -> dict[str, str]:
    """Headers of every request; no compression, which would delay small chunks."""
    return {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {api_key}"} if api_key else {})


class BenchTarget:
    """One base address, with its own connections."""

    def __init__(self, name: str, url: str, api_key: str, model: str, timeout_s: float) -> None:
        self.name = name
        self.address = root_address(url)
        self.model = model
        self.extra: Mapping[str, Any] = {}  # fields sent beyond the standard ones
        self._client = httpx.AsyncClient(
            base_url=self.address,
            headers=headers_for(api_key),
            timeout=timeout_s,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=may_use_proxy(self.address),
        )

    async def close(self) -> None:
        """Drop the connections."""
        await self._client.aclose()

    async def find_model(self) -> None:
        """Take the first model that the server lists, unless one was given. Raises Unreachable."""
        if self.model:
            return
        try:
            response = await self._client.get("v1/models")
            listed = response.json()
            if response.status_code != 200:
                raise Unreachable(f"{self.address} answers {response.status_code}: {error_message(listed)}")
            self.model = str(listed["data"][0]["id"])
        except httpx.HTTPError as error:
            raise Unreachable(f"nothing answers at {self.address}: {error or type(error).__name__}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise Unreachable(f"{self.address}/v1/models is no list of models; name one with --model") from error

    async def chat(self, messages: Sequence[Message], max_tokens: int) -> MeasuredAnswer:
        """One greedy streamed answer."""
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return await ask(self._client, body | dict(self.extra))

    async def counters(self) -> ScrapedCounters | None:
        """The engine's counters once nothing runs any more; None when the server has none of ours."""
        deadline = time.monotonic() + SETTLE_S
        previous: Reading | None = None
        while True:
            reading = await self._reading()
            is_settled = reading is None or (reading.unfinished == 0 and reading == previous)
            if reading is None or is_settled or time.monotonic() > deadline:
                return None if reading is None else reading.counters
            previous = reading
            await asyncio.sleep(SETTLE_STEP_S)

    async def _reading(self) -> Reading | None:
        try:
            response = await self._client.get("metrics")
        except httpx.HTTPError:
            return None
        return read_metrics(response.text) if response.status_code == 200 else None
