"""Connections that come and go leave nothing behind (CVE-2026-9540): files, tasks, rows, requests, busy callers."""

import asyncio
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET, socket
from typing import Any

import httpx
import pytest

from server.http.connections import ConnectionLimits
from server.middleware.auth import Limiter
from server.middleware.checks import Guard
from tests.server.http.test_hostile import chat, exchange, raw
from tests.server.served import Served, served

CYCLES = 1000
AT_ONCE = 20
PATIENCE_S = 60
OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        ConnectionLimits(most=64),
        api_keys="anna:sk-anna",
        max_concurrent=10**6,
        requests_per_minute=10**9,
        max_queued=10**4,
    ) as running:
        yield running


def limiter(server: Served) -> Limiter:
    """The limiter of the app's guard: the layer inside the access log, which is inside Starlette's outermost one."""
    found: Any = server.app.middleware_stack
    while not isinstance(found, Guard):
        found = getattr(found, "app", None) or found._app
    return found._limiter


def counts(server: Served) -> tuple[int, ...]:
    """Open files, tasks, connections, requests in flight, sequences of the engine, busy callers."""
    files = len(list(OPEN_FILES.iterdir())) if OPEN_FILES.exists() else 0
    service = server.app.state.server
    connections = len(server.server.server_state.connections)
    return files, server.tasks(), connections, service.in_flight.count, len(server.engine.live), limiter(server).busy


async def come_and_go(port: int, number: int) -> None:
    """One of seven ways: leave at once, in the head, in the body, before the answer, in the stream, reset, politely."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    way = number % 7
    request = chat(stream=way in (4, 5))
    pieces = {0: b"", 1: request[:20], 2: request[:-5]}
    writer.write(pieces.get(way, request))
    if way >= 4:
        await reader.readuntil(b"\r\n\r\n")
    if way == 6:
        await reader.readuntil(b'"devices":[]}}')
        writer.close()
        await writer.wait_closed()
        return
    if way == 5:
        made: socket = writer.get_extra_info("socket")
        made.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def churn(port: int, cycles: int) -> None:
    for start in range(0, cycles, AT_ONCE):
        await asyncio.gather(*(come_and_go(port, number) for number in range(start, start + AT_ONCE)))


@pytest.mark.skipif(sys.platform == "win32", reason="counts open files in /proc")
async def test_nothing_is_left_behind(server: Served) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await churn(server.port, AT_ONCE * 2)
        assert (await exchange(server.port, chat()))[0] == 200
        before = await settled(server)
        await churn(server.port, CYCLES)
        after = await settled(server)
    assert before[1:] == after[1:]
    assert abs(after[0] - before[0]) <= 1
    status, answer = await exchange(server.port, chat())
    assert status == 200
    assert json.loads(answer)["usage"]["completion_tokens"] == 5


async def settled(server: Served) -> tuple[int, ...]:
    """The counts once no connection is open and they stay: the clients' own sockets are closed a turn later."""
    previous: tuple[int, ...] = ()
    while True:
        found = await asyncio.to_thread(counts, server)
        if found[2:] == (0, 0, 0, 0) and found == previous:
            return found
        previous = found
        await asyncio.sleep(0)


async def test_too_many_connections_are_told_so(server: Served) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await settled(server)
        held = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(64)]
        for _, writer in held:
            writer.write(b"GET /health/live HT")
        status, body = await exchange(server.port, raw("GET", "/health/live"))
        assert (status, json.loads(body)["error"]["type"]) == (503, "server_error")
        for _, writer in held:
            writer.transport.abort()
        await settled(server)
        async with httpx.AsyncClient(base_url=server.url) as client:
            assert (await client.get("/health/live")).status_code == 200
