"""What is wrong below HTTP's surface: headers that never end, are too large, or are no HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from server.http.uvicorn_protocol import protocol_factory
from server.run import bind


@pytest.fixture
async def address(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http=protocol_factory(0.3), log_level="critical", timeout_graceful_shutdown=1, lifespan="off"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([listener]))
    yield listener.getsockname()[:2]
    server.should_exit = True
    await serving


async def exchange(address: tuple[str, int], *pieces: bytes) -> tuple[bytes, bytes]:
    """Status line and body of the last answer; the server closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.rpartition(b"\r\n\r\n")
    return head[head.rindex(b"HTTP/1.1") :].partition(b"\r\n")[0], body


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ((), b"408"),
        ((b"GET /health HT",), b"408"),
        ((b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow:",), b"408"),
        ((b"hello\r\n\r\n",), b"400"),
        ((b"GET / HTTP/1.1\r\nHost x\r\n\r\n",), b"400"),
        ((b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"x" * 70_000,), b"431"),
        ((b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",), b"400"),
    ],
)
async def test_a_broken_head(address: tuple[str, int], pieces: tuple[bytes, ...], status: bytes) -> None:
    line, body = await exchange(address, *pieces)
    assert line.split()[1] == status
    error = json.loads(body)["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)


async def test_a_second_head_that_does_not_end(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"}")
    writer.write(b"GET /health HT")
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_good_requests_on_one_connection(address: tuple[str, int]) -> None:
    host, port = address
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}") as client:
        for _ in range(3):
            assert (await client.get("/health")).status_code == 200
