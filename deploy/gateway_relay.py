"""One answer from as many servers as it takes. Used by ray_serve.py, whose classes Ray copies without their module."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
from fastapi import Response
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from deploy.gateway_calls import Exchange

MOST_LOSSES = 5  # of one request
LOST = (RayError, RayServeException, httpx.TransportError)


class Relayed:
    """The answer to one exchange, from as many replicas as it takes."""

    def __init__(self, replicas: DeploymentHandle, exchange: Exchange) -> None:
        self._replicas = replicas
        self._exchange = exchange
        self._losses = 0
        self._source: AsyncIterator[Any] | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    @property
    def is_stream(self) -> bool:
        """Whether its pieces are passed on as they come."""
        return self.headers.get("content-type", "").startswith(("text/event-stream", "application/x-ndjson"))

    async def begin(self) -> None:
        """Send the request and have the head of the answer; raises one of LOST when that was tried too often."""
        while True:
            source = self._replicas.relay.remote(self._exchange.call())
            try:
                self.status, headers = await anext(source)
                self.headers, self._source = dict(headers), source
                return
            except LOST as error:
                await self._count_loss(error)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body. A stream that can be gone on with is; another one breaks off."""
        try:
            while True:
                try:
                    assert self._source is not None
                    async for data in self._source:
                        if passed := self._exchange.take(data):
                            yield passed
                    yield self._exchange.rest()
                    return
                except LOST as error:
                    if not self._exchange.is_resumable:
                        raise
                    await self._begin_again(error)
        finally:
            self._cancel()

    async def whole(self) -> bytes:
        """The body of an answer that is no stream; nothing has been passed on, so it can be asked for again."""
        while True:
            try:
                assert self._source is not None
                return b"".join([data async for data in self._source])
            except LOST as error:
                await self._count_loss(error)
                await self.begin()

    async def _begin_again(self, error: Exception) -> None:
        """Go on with a stream; a server that refuses to is a loss as well, for its answer is no part of the stream."""
        status = self.status
        while True:
            await self._count_loss(error)
            await self.begin()
            if self.status == status:
                return

    async def _count_loss(self, error: Exception) -> None:
        """Raise it when there were too many; else wait a moment for Ray to notice."""
        self._losses += 1
        if self._losses > MOST_LOSSES:
            raise error
        await asyncio.sleep(0.2 * self._losses)

    def _cancel(self) -> None:
        if self._source is not None:
            self._source.cancel()


def error_answer(status: int, message: str) -> Response:
    """An answer of the gateway itself, in OpenAI's form."""
    body = {"error": {"message": message, "type": "server_error", "param": None, "code": None}}
    return Response(msgspec.json.encode(body), status, media_type="application/json")
