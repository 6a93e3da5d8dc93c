"""What is wrong below HTTP's surface: headers that never end, are too large, or are no HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from server.http.connections import ConnectionLimits, protocol_factory
from server.run import bind
from tests.server.scripted_engine import NAME, ScriptedEngine


@pytest.fixture
async def address(app: FastAPI) -> AsyncIterator[tuple[str, int]]:
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        app,
        http=protocol_factory(ConnectionLimits(header_timeout_s=0.3)),
        log_level="critical",
        timeout_graceful_shutdown=1,
        lifespan="off",
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


def post(body: bytes, *headers: bytes, version: bytes = b"1.1") -> bytes:
    """A chat request as bytes."""
    head = [
        b"POST /v1/chat/completions HTTP/" + version,
        b"Host: localhost",
        b"Content-Type: application/json",
        *headers,
    ]
    return b"\r\n".join([*head, b"", b""]) + body


def chat(**fields: object) -> bytes:
    """The body of a chat."""
    return json.dumps({"model": NAME, "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


def sized(body: bytes, version: bytes = b"1.1") -> bytes:
    """A chat request with its length."""
    return post(body, b"Content-Length: %d" % len(body), version=version)


async def test_two_framings_close_the_connection(address: tuple[str, int]) -> None:
    body = chat()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(post(chunked, b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked"))
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.read()  # ends: the server has closed
    writer.close()
    assert head.startswith(b"HTTP/1.1 200 ") and b"connection: close\r\n" in head.lower()


async def test_one_framing_keeps_the_connection(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(2):
        writer.write(sized(chat()))
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readuntil(b'"devices":[]}}')
        assert b"connection: close" not in head.lower()
    writer.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_who_closes_its_side_after_the_request_gets_the_answer(
    address: tuple[str, int], engine: ScriptedEngine, stream: bool
) -> None:
    engine.hold(1)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sized(chat(stream=stream)))
    writer.write_eof()
    async with asyncio.timeout(10):
        await engine.submit_seen.wait()
        answer = await reader.readuntil(
            b": \n\n" if stream else b"HTTP/1.1 102 \r\n\r\n"
        )  # it is asked whether it waits
        engine.release(100)
        answer += await reader.read()
    writer.close()
    ending = b"data: [DONE]\n\n" if stream else b"}}"
    assert b"HTTP/1.1 200 " in answer and ending in answer and engine.aborted == []


@pytest.mark.parametrize("stream", [False, True])
async def test_who_is_gone_after_the_request_is_noticed_without_a_token(
    address: tuple[str, int], engine: ScriptedEngine, stream: bool
) -> None:
    engine.hold(1 if stream else 0)
    _, writer = await asyncio.open_connection(*address)
    writer.write(sized(chat(stream=stream)))
    await writer.drain()
    async with asyncio.timeout(10):
        await engine.submit_seen.wait()
        writer.close()
        await engine.abort_seen.wait()


async def test_http_1_0_knows_no_interim_response(address: tuple[str, int], engine: ScriptedEngine) -> None:
    engine.hold(0)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sized(chat(), version=b"1.0"))
    async with asyncio.timeout(10):
        await engine.submit_seen.wait()
        writer.write_eof()
        assert await reader.read() == b""
        await engine.abort_seen.wait()
    writer.close()


async def test_half_a_request_and_an_end_is_no_request(address: tuple[str, int], engine: ScriptedEngine) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sized(chat())[:-5])
    writer.write_eof()
    async with asyncio.timeout(10):
        await reader.read()
    writer.close()
    assert engine.submitted == []
