"""A server under load: its client, the fields it is sent, its counters."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx

from server.commands.bench.answers import MeasuredAnswer, ask
from server.commands.bench.prompts import BenchPrompt
from server.commands.bench.scrape import Reading, ScrapedCounters, read_metrics, read_stages
from server.commands.http_client.client import ServerClient

SETTLE_S = 3.0
SETTLE_STEP_S = 0.05


class BenchTarget:
    """One base address, with its own connections."""

    def __init__(self, name: str, url: str, api_key: str, model: str, timeout_s: float) -> None:
        """Raises UnusableAddress."""
        self.name = name
        self.extra: Mapping[str, Any] = {}  # fields sent beyond the standard ones
        self._client = ServerClient(
            url, api_key, model, httpx.Timeout(timeout_s), keep_alive_s=0
        )  # some close kept ones

    @property
    def address(self) -> str:
        """Where it is."""
        return self._client.address

    @property
    def model(self) -> str:
        """Name of the model; empty until it is given or found."""
        return self._client.model

    async def close(self) -> None:
        """Drop the connections."""
        await self._client.close()

    async def find_model(self) -> None:
        """Take the first model that the server lists, unless one was given. Raises Unreachable."""
        await self._client.find_model()

    async def answer(self, prompt: BenchPrompt, max_tokens: int) -> MeasuredAnswer:
        """One greedy streamed answer."""
        return await ask(self._client, prompt, {"max_tokens": max_tokens, "temperature": 0, **self.extra})

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

    async def stages(self) -> dict[str, float]:
        """Seconds by stage of the engine's steps so far."""
        return read_stages(await self._client.text_at("metrics") or "")

    async def _reading(self) -> Reading | None:
        text = await self._client.text_at("metrics")
        return None if text is None else read_metrics(text)
