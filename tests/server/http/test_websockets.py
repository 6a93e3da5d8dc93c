"""WebSockets as bytes on a real socket: handshakes, frames that break the protocol, clients that leave."""

import json
import logging
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from server.middleware.access_log import ACCESS_LOGGER
from server.run import LARGEST_MESSAGE
from tests.server.served import Served, served
from tests.server.speaking_engine import SpeakingEngine
from tests.server.websocket_client import PATH, PATIENCE_S, UPGRADE, Client

KEY = "Authorization: Bearer sk-anna"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(make_engine=lambda: SpeakingEngine("said"), api_keys="anna:sk-anna", max_concurrent=1) as running:
        yield running


def opened(server: Served) -> Client:
    """A session; the one before may still be on its way out."""
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        client = Client(server, *UPGRADE, KEY)
        if client.status == 101:
            assert client.event()["type"] == "session.created"
            return client
        client.socket.close()
        assert client.status == 429
        assert time.monotonic() < ends_s, "the session before is still open"


HANDSHAKES = [
    ((KEY,), {}, 426),
    (UPGRADE, {}, 401),
    ((*UPGRADE, "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.other"), {}, 401),
    ((*UPGRADE, KEY), {"host": "evil.example"}, 403),
    ((*UPGRADE, KEY, "Origin: https://evil.example"), {}, 403),
    ((*UPGRADE, KEY, "Origin: http://127.0.0.1:1"), {"host": "127.0.0.1:2"}, 403),
    ((*UPGRADE, KEY), {"path": "/v1/realtime"}, 400),
    ((*UPGRADE, KEY), {"path": f"{PATH}&model=other"}, 404),
    ((*UPGRADE, KEY), {"path": "/v1/models"}, 200),  # an upgrade that nobody takes up
    ((*UPGRADE, KEY), {"path": "/v1/other"}, 404),
    ((*UPGRADE, KEY, "X-Large: " + "a" * 33_000), {}, 431),
]


@pytest.mark.parametrize(("headers", "more", "status"), HANDSHAKES)
def test_handshakes_that_open_nothing(
    server: Served, headers: tuple[str, ...], more: dict[str, str], status: int
) -> None:
    with Client(server, *headers, **more) as client:
        assert client.status == status
        assert "x-request-id: req_" in client.head
        assert status == 200 or "message" in json.loads(client.body)["error"]


@pytest.mark.parametrize("left_out", [2, 3], ids=["version", "key"])
def test_handshakes_that_are_none(server: Served, left_out: int) -> None:
    headers = [header for place, header in enumerate(UPGRADE) if place != left_out]
    with Client(server, *headers, KEY) as client:
        assert client.status in (400, 426)


def test_the_subprotocol_of_browsers(server: Served) -> None:
    asked = "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.sk-anna"
    opened(server).socket.close()
    ends_s = time.monotonic() + PATIENCE_S
    while True:
        with Client(server, *UPGRADE, asked, "Origin: http://localhost") as client:
            if client.status == 101:
                assert "sec-websocket-protocol: realtime\r" in client.head + "\r"
                assert "sk-anna" not in client.head
                return
        assert time.monotonic() < ends_s


def test_a_message_that_is_too_large_closes_the_connection(server: Served) -> None:
    with opened(server) as client:
        client.say(type="input_audio_buffer.append", audio="A" * (LARGEST_MESSAGE - 100))
        client.say(type="input_audio_buffer.clear")
        try:
            client.say(type="input_audio_buffer.append", audio="A" * (LARGEST_MESSAGE + 1))
        except OSError:
            return
        assert client.end() in (1009, None)  # what was sent behind it may reset the connection


def frame(opcode: int, data: bytes, is_last: bool = True, is_masked: bool = True) -> bytes:
    """RFC 6455, 5.2."""
    mask = os.urandom(4) if is_masked else b""
    size = bytes([len(data) | (0x80 if is_masked else 0)])
    if len(data) > 125:
        size = bytes([126 | (0x80 if is_masked else 0)]) + struct.pack("!H", len(data))
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(data)) if is_masked else data
    return bytes([opcode | (0x80 if is_last else 0)]) + size + mask + masked


BROKEN = {
    "unmasked": frame(1, b"{}", is_masked=False),
    "no UTF-8": frame(1, b"\xff\xfe"),
    "no opcode": frame(3, b"x"),
    "goes on with nothing": frame(0, b"x"),
    "a ping in parts": frame(9, b"x", is_last=False),
    "2**62 bytes": bytes([0x81, 0xFF]) + struct.pack("!Q", 2**62) + b"mask" + b"{" * 70_000,
    "a text in a text": frame(1, b"{", is_last=False) + frame(1, b"}"),
    "compressed": bytes([0xC1, 0x80]) + b"mask",
}


@pytest.mark.parametrize("name", BROKEN)
def test_frames_that_break_the_protocol(server: Served, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """They end their connection, and no line of the log."""
    with opened(server) as client:
        client.socket.sendall(BROKEN[name])
        if name == "2**62 bytes":  # it may still come: only more of it than is allowed ends the connection
            with suppress(OSError):
                client.socket.sendall(b"{" * LARGEST_MESSAGE)
        assert client.end() in (None, 1002, 1007, 1009)
    opened(server).socket.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_client_that_says_that_it_leaves(server: Served) -> None:
    with opened(server) as client:
        client.socket.sendall(frame(8, struct.pack("!H", 1000)))
        assert client.end() == 1000


def test_pings_are_answered_and_binary_messages_refused(server: Served) -> None:
    with opened(server) as client:
        client.socket.sendall(frame(9, b"ping") + frame(2, b"\0\1"))
        assert "binary" in client.event()["error"]["message"]


def test_who_leaves_at_once_leaves_nothing_behind(server: Served) -> None:
    """Sessions are one a key here: the next one opens once the one before is gone."""
    server.engine.hold(0)
    for _ in range(5):
        client = opened(server)
        client.say(type="session.update", session={"audio": {"input": {"turn_detection": None}}})
        client.say(type="input_audio_buffer.append", audio="AAAA" * 20_000)
        client.say(type="input_audio_buffer.commit")
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        client.socket.close()
    server.engine.release(1000)
    opened(server).socket.close()
    assert (server.engine.live, server.in_flight.count) == (set(), 0)


def test_the_log_and_the_metrics_tell_of_a_session(server: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, ACCESS_LOGGER):
        opened(server).socket.close()
        opened(server).socket.close()  # once this one is open the one before has been told of
    lines = [record.getMessage() for record in caplog.records if record.name == ACCESS_LOGGER]
    assert any(line.startswith("GET /v1/realtime 101 ") and "key=anna" in line for line in lines)
    metrics = httpx.get(f"{server.url}/metrics", headers={"Authorization": "Bearer sk-anna"}).text
    assert any('handler="/v1/realtime"' in line and 'status="101"' in line for line in metrics.splitlines())


def test_a_server_that_ends_says_so() -> None:
    with served(make_engine=lambda: SpeakingEngine("said"), api_keys="anna:sk-anna") as running:
        client = opened(running)
        running.loop.call_soon_threadsafe(running.server.end)
        assert client.end() == 1012
        client.socket.close()
