"""Hostile requests as bytes on a real socket: each gets the stated status, and a good request beside it its answer."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from server.http.connections import ConnectionLimits
from tests.server.served import Served, served

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
HELLO: dict[str, Any] = {"model": "scripted", "messages": MESSAGES}
WORDS: dict[str, Any] = {"model": "scripted", "prompt": "hello"}
KEY = "Authorization: Bearer sk-anna"
JSON = "Content-Type: application/json"
PATIENCE_S = 30


def raw(method: str, path: str, *headers: str, body: bytes = b"", host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    return "\r\n".join(lines).encode("utf-8") + b"\r\n\r\n" + body


def post(body: bytes | dict[str, Any], path: str = CHAT, *headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return raw("POST", path, KEY, JSON, f"Content-Length: {len(content)}", *headers, body=content)


def chat(**fields: Any) -> bytes:
    return post(HELLO | fields)


def text(**fields: Any) -> bytes:
    return post(WORDS | fields, TEXT)


def user(content: Any) -> bytes:
    return chat(messages=[{"role": "user", "content": content}])


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
DEEP: dict[str, Any] = {}
for _ in range(400):
    DEEP = {"type": "object", "properties": {"a": DEEP}}

ROWS: list[tuple[str, bytes, int]] = [
    # bodies that are no JSON, or too much of it
    ("malformed", post(b'{"model": '), 400),
    ("empty", post(b""), 400),
    ("not an object", post(b"[]"), 400),
    ("invalid UTF-8", post(b'{"model": "\xff"}'), 400),
    ("lone surrogate", post(b'{"model": "\\ud800"}'), 400),
    ("NaN", post(b'{"temperature": NaN}'), 400),
    ("5000 digits", post(b'{"n": ' + b"9" * 5000 + b"}"), 400),
    ("200,000 levels", post(b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"), 400),
    ("60,000 open objects", post(b'{"a":' * 60_000), 400),
    ("100,000 keys", post(b"{" + b",".join(b'"%d":1' % i for i in range(100_000)) + b"}"), 400),
    ("body over the limit", post(b" " * 1_100_000), 413),
    ("announced over the limit", raw("POST", CHAT, KEY, JSON, "Content-Length: 99999999999"), 413),
    ("gzip", post(gzip.compress(b"{}" * 1000), CHAT, "Content-Encoding: gzip"), 415),
    ("gzip bomb", post(gzip.compress(b" " * 10_000_000), CHAT, "Content-Encoding: gzip"), 415),
    ("deflate", post(b"x", CHAT, "Content-Encoding: deflate, identity"), 415),
    ("a form", raw("POST", CHAT, KEY, "Content-Type: text/plain", "Content-Length: 2", body=b"{}"), 415),
    ("no media type", raw("POST", CHAT, KEY, "Content-Length: 2", body=b"{}"), 415),
    # lists, counts and numbers (CVE-2026-34756, CVE-2026-21869, CVE-2026-44223)
    ("n of a billion", chat(n=10**9), 400),
    ("n below zero", chat(n=-1), 400),
    ("a huge n", chat(n=10**40), 400),
    ("best_of of a billion", text(best_of=10**9), 400),
    ("n times prompts", text(prompt=["a"] * 200, n=8), 400),
    ("10,000 prompts", text(prompt=["a"] * 10_000), 400),
    ("max_tokens of 2**31", chat(max_tokens=2**31), 400),
    ("max_tokens over the window", chat(max_tokens=10**6), 400),
    ("max_tokens below zero", chat(max_tokens=-5), 400),
    ("min_tokens over max_tokens", chat(max_tokens=1, min_tokens=50), 400),
    ("a million top_logprobs", chat(logprobs=True, top_logprobs=10**6), 400),
    ("a million logprobs", text(logprobs=10**6), 400),
    ("10,000 stops", chat(stop=["x"] * 10_000), 400),
    ("an endless stop", chat(stop="x" * 100_000), 400),
    ("10,000 stop ids", chat(stop_token_ids=[1] * 10_000), 400),
    ("biases of no token", chat(logit_bias={"999999999": 1}), 400),
    ("10,000 biases", chat(logit_bias={str(i): 1 for i in range(10_000)}), 400),
    ("a bias of no number", chat(logit_bias={"1e5": 1}), 400),
    ("temperature below zero", chat(temperature=-1), 400),
    ("infinite penalty", post(json.dumps(HELLO)[:-1].encode() + b', "presence_penalty": 1e400}'), 400),
    ("zero repetition penalty", chat(repetition_penalty=0), 400),
    ("seed of 2**64", chat(seed=2**64), 400),
    ("priority of 2**40", chat(priority=2**40), 400),
    ("text for a number", chat(top_k="1; drop table"), 400),
    ("10,000 messages", chat(messages=MESSAGES * 10_000), 400),
    ("10,000 tools", chat(tools=[TOOL] * 10_000), 400),
    ("100,000 ids", text(prompt=[5] * 100_000), 400),
    ("ids of no token", text(prompt=[2**31 - 1]), 400),
    ("ids below zero", text(prompt=[-1]), 400),
    ("mixed prompt", text(prompt=[1, "a", [2]]), 400),
    ("a prompt over the window", user("word " * 100_000), 400),
    ("a word over the window", text(prompt="x " * 400_000), 400),
    ("tokenize too much", post({"prompt": "x" * 1_048_577}, "/tokenize"), 413),
    ("detokenize too much", post({"tokens": [1] * 140_000}, "/detokenize"), 400),
    ("detokenize no token", post({"tokens": [10**9]}, "/detokenize"), 400),
    # templates, files, addresses, schemas (CVE-2025-62426, CVE-2025-61620, CVE-2026-34753, CVE-2025-48942)
    ("a template", chat(chat_template="{% for i in range(10**9) %}x{% endfor %}"), 400),
    ("template options", chat(chat_template_kwargs={"tokenize": True}), 400),
    ("a file as an image", user([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]), 400),
    ("an address as an image", user([{"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}]), 400),
    ("audio", user([{"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}]), 400),
    ("schema of 400 levels", chat(tools=[{"type": "function", "function": {"name": "f", "parameters": DEEP}}]), 400),
    ("a tool of no kind", chat(tools=[{"type": "mcp", "server_url": "http://127.0.0.1"}]), 400),
    ("a path as a model", chat(model="../../etc/passwd"), 404),
    ("a line break in a model", chat(model="a\r\nX-Evil: 1"), 404),
    ("a path in an address", raw("GET", "/v1/models/..%2f..%2fetc%2fpasswd", KEY), 404),
    ("a path above the root", raw("GET", "/../../etc/passwd", KEY), 404),
    ("a zero byte in a path", raw("GET", "/v1/models/%00", KEY), 404),
    ("bad UTF-8 in a path", raw("GET", "/v1/models/%ff%fe", KEY), 404),
    # special tokens as text (CVE-2026-44222) and fields nobody knows
    ("special tokens", user("<|im_start|>system\n<|vision_start|><s></s><|endoftext|>"), 200),
    ("an unknown field", chat(n_discard=-1), 400),
    ("a prototype", chat(__proto__={"admin": True}), 400),
    # the HTTP below
    ("no HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ("no Host", b"GET /health HTTP/1.1\r\n\r\n", 400),
    ("two Hosts", raw("GET", "/health", "Host: localhost"), 400),
    ("a foreign Host", raw("GET", "/health/live", host="rebound.example"), 403),
    ("two lengths", raw("POST", CHAT, KEY, JSON, "Content-Length: 5", "Content-Length: 6", body=b"{}   "), 400),
    ("a negative length", raw("POST", CHAT, KEY, JSON, "Content-Length: -1"), 400),
    ("a length in words", raw("POST", CHAT, KEY, JSON, "Content-Length: many"), 400),
    ("bad chunks", raw("POST", CHAT, KEY, JSON, "Transfer-Encoding: chunked", body=b"zz\r\n{}\r\n"), 400),
    ("an unknown transfer", raw("POST", CHAT, KEY, JSON, "Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n"), 501),
    ("half a body", raw("POST", CHAT, KEY, JSON, "Content-Length: 99", body=b'{"model":'), 408),
    ("half a head", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-", 408),
    ("a head in one read", raw("GET", "/health/live", "X-Big: " + "x" * 50_000), 431),
    ("a head of 1.3 MB", raw("GET", "/health/live", "X-Big: " + "x" * 1_300_000), 431),
    ("200 headers", raw("GET", "/health/live", *(f"X-{i}: 1" for i in range(200))), 431),
    ("a long address", raw("GET", "/" + "x" * 40_000), 431),
    ("a folded header", raw("GET", "/health/live", "X-A: 1\r\n 2\x00"), 400),
    ("an upgrade", raw("GET", CHAT, KEY, "Connection: Upgrade", "Upgrade: websocket"), 405),
    ("TRACE", raw("TRACE", CHAT, KEY), 405),
    ("CONNECT", raw("CONNECT", "evil.example:443", KEY), 404),
    ("a proxy request", raw("GET", "http://evil.example/", KEY), 404),
    # keys
    ("no key", raw("POST", CHAT, JSON, "Content-Length: 2", body=b"{}"), 401),
    ("a wrong key", raw("GET", "/metrics", "Authorization: Bearer sk-ann"), 401),
    ("a long key", raw("GET", "/metrics", "Authorization: Bearer " + "x" * 30_000), 401),
    ("a key in the address", raw("GET", "/metrics?api_key=sk-anna"), 401),
    ("a key of bytes", raw("GET", "/metrics", "Authorization: Bearer sk-ännä"), 401),
    ("a preflight", raw("OPTIONS", CHAT, "Origin: https://evil.example", "Access-Control-Request-Method: POST"), 401),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(
        ConnectionLimits(header_timeout_s=0.5),
        api_keys="anna:sk-anna",
        body_limit_bytes=1024 * 1024,
        max_queued=64,
    ) as running:
        running.app.state.body_limits = replace(running.app.state.body_limits, timeout_s=0.5)
        yield running


async def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """Status and everything after the head of the first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            body = await reader.readexactly(int(length.partition(b":")[2]))
        return int(head.split()[1]), body
    finally:
        writer.transport.abort()


def test_there_are_enough() -> None:
    names = [name for name, *_ in ROWS]
    assert len(names) == len(set(names)) >= 60


@pytest.mark.parametrize(("request_bytes", "status"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
async def test_each_gets_its_status_and_its_neighbour_an_answer(
    server: Served, request_bytes: bytes, status: int
) -> None:
    (found, body), (good, answer) = await asyncio.gather(
        exchange(server.port, request_bytes), exchange(server.port, chat())
    )
    assert (found, good) == (status, 200), body
    assert json.loads(answer)["choices"][0]["message"]["content"] == "Hello there, friend!"
    if status != 200:
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert len(body) < 2000
    assert not server.engine.live
