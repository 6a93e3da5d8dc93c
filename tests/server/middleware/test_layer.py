"""The guard around the real app: keys, hosts, origins, rates, sizes, HEAD."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from starlette.types import Message, Receive, Scope, Send

from engine.config import EngineConfig
from server.middleware.auth import Denial, KeyRing, read_keys
from server.middleware.checks import OPEN_PATHS, HeadChecks, rate_error
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine

CHAT = "/v1/chat/completions"
HELLO: Any = {"model": NAME, "messages": [{"role": "user", "content": "hello"}]}
KEYS = "anna:sk-anna,ben:sk-ben"
ORIGIN = "https://app.example.org"
Serve = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def serve(engine: ScriptedEngine) -> Serve:
    def serve(base_url: str = "http://127.0.0.1", client: str = "127.0.0.1", **options: Any) -> httpx.AsyncClient:
        app = create_app(
            Settings(EngineConfig("unused"), **options), engine, read_keys(options.get("api_keys", ""), "")
        )
        transport = httpx.ASGITransport(app, client=(client, 1))
        return httpx.AsyncClient(transport=transport, base_url=base_url)

    return serve


def checked(answer: httpx.Response, status: int, code: str | None) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert answer.headers["x-request-id"]
    return dict(error)


EVERYTHING = [
    ("GET", "/v1/models"),
    ("GET", f"/v1/models/{NAME}"),
    ("POST", CHAT),
    ("POST", "/v1/completions"),
    ("GET", "/metrics"),
    ("GET", "/health/ready"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/nowhere"),
    ("GET", "/health/../metrics"),
    ("GET", "/health/live/"),
    ("GET", "//health"),
    ("GET", "/HEALTH"),
    ("POST", "/health"),
    ("OPTIONS", CHAT),
    ("HEAD", "/metrics"),
]


@pytest.mark.parametrize(("method", "path"), EVERYTHING)
async def test_everything_is_guarded(serve: Serve, method: str, path: str, engine: ScriptedEngine) -> None:
    path = f"http://127.0.0.1{path}"  # joined to a base, //health would be the root of another host
    async with serve(api_keys=KEYS) as client:
        answer = await client.request(method, path, json=HELLO if method == "POST" else None)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert checked(answer, 401, None)["type"] == "invalid_request_error"
        allowed = await client.request(method, path, headers={"Authorization": "Bearer sk-anna"})
        assert allowed.status_code != 401
    assert not engine.submitted


async def test_liveness_is_open(serve: Serve) -> None:
    async with serve(api_keys=KEYS) as client:
        for path in OPEN_PATHS:
            assert (await client.get(path)).status_code == 200
            assert (await client.head(path)).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer sk-anna"}, 200),
        ({"Authorization": "bearer sk-ben"}, 200),
        ({"x-api-key": "sk-anna"}, 200),
        ({"api-key": "sk-anna"}, 200),
        ({"Authorization": "Bearer sk-ann"}, 401),
        ({"Authorization": "Bearer sk-anna2"}, 401),
        ({"Authorization": "Basic sk-anna"}, 401),
        ({"Authorization": "Bearer " + "x" * 20_000}, 401),
        ({"x-api-key": "anna"}, 401),
        ({"Cookie": "api_key=sk-anna"}, 401),
    ],
)
async def test_keys(serve: Serve, headers: dict[str, str], status: int) -> None:
    async with serve(api_keys=KEYS) as client:
        answer = await client.post(CHAT, json=HELLO, headers=headers)
        assert answer.status_code == status
        assert (await client.post(f"{CHAT}?api_key=sk-anna", json=HELLO)).status_code == 401


async def test_a_wrong_key_has_its_code(serve: Serve) -> None:
    async with serve(api_keys=KEYS) as client:
        answer = await client.get("/v1/models", headers={"Authorization": "Bearer sk-wrong"})
        assert "sk-wrong" not in checked(answer, 401, "invalid_api_key")["message"]


async def test_the_log_has_names_and_never_keys_or_prompts(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serve(api_keys=KEYS) as client:
            for key in ("sk-anna", "sk-ben", "sk-wrong"):
                body = HELLO | {"messages": [{"role": "user", "content": "tell nobody xyzzy"}]}
                await client.post(CHAT, json=body, headers={"Authorization": f"Bearer {key}"})
                await client.post(CHAT, json=body | {"stream": True}, headers={"x-api-key": key})
                await client.post(CHAT, json=body | {"n": "xyzzy"}, headers={"api-key": key})
    lines = [record.getMessage() for record in caplog.records if record.name == "hexserve.access"]
    assert sum("key=anna" in line for line in lines) == 3
    warned = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warned == ["an API key from 127.0.0.1 is not one of ours"] * 3
    assert sum("key=ben" in line for line in lines) == 3
    everything = caplog.text + repr(Settings(EngineConfig("unused"), api_keys=KEYS))
    assert "sk-" not in everything
    assert "xyzzy" not in everything


@pytest.mark.parametrize(
    ("options", "host", "status"),
    [
        ({}, "127.0.0.1:8000", 200),
        ({}, "localhost", 200),
        ({}, "evil.example", 403),
        ({}, "evil.example:8000", 403),
        ({"allowed_hosts": "mine.example"}, "mine.example:1", 200),
        ({"allowed_hosts": "mine.example"}, "evil.example", 403),
        ({"allowed_hosts": "*"}, "evil.example", 200),
        ({"host": "0.0.0.0"}, "evil.example", 200),
        ({"host": "0.0.0.0", "allowed_hosts": "mine.example"}, "evil.example", 403),
    ],
)
async def test_hosts(serve: Serve, options: dict[str, Any], host: str, status: int) -> None:
    async with serve(**options) as client:
        answer = await client.get("/health/live", headers={"Host": host})
        assert answer.status_code == status
        if status == 403:
            checked(answer, 403, "host_not_allowed")


async def test_origins_are_closed_by_default(serve: Serve) -> None:
    asking = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    async with serve() as client:
        for answer in (
            await client.options(CHAT, headers=asking),
            await client.get("/v1/models", headers={"Origin": ORIGIN}),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control")]
    async with serve(cors_origins="https://other.example") as client:
        answer = await client.options(CHAT, headers=asking)
        assert answer.status_code == 400
        assert "access-control-allow-origin" not in answer.headers
        answer = await client.get("/v1/models", headers={"Origin": ORIGIN})
        assert "access-control-allow-origin" not in answer.headers and answer.headers["vary"] == "Origin"
    async with serve(cors_origins="*") as client:
        answer = await client.get("/v1/models", headers={"Origin": ORIGIN})
        assert answer.headers["access-control-allow-origin"] == "*"


async def test_a_listed_origin(serve: Serve) -> None:
    asking = {
        "Origin": ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    async with serve(cors_origins=f"{ORIGIN}, https://b.example", api_keys=KEYS) as client:
        preflight = await client.options(CHAT, headers=asking)
        assert preflight.status_code == 200
        assert "POST" in preflight.headers["access-control-allow-methods"]
        assert "access-control-allow-credentials" not in preflight.headers
        assert preflight.headers["access-control-allow-origin"] == ORIGIN
        assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
        key = {"Authorization": "Bearer sk-anna", "Origin": ORIGIN}
        answers = [
            await client.post(CHAT, json=HELLO, headers=key),
            await client.post(CHAT, json=HELLO | {"stream": True}, headers=key),
            await client.post(CHAT, json={}, headers=key),
            await client.post(CHAT, json=HELLO, headers={"Origin": ORIGIN}),
        ]
        assert [answer.status_code for answer in answers] == [200, 200, 400, 401]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            exposed = set(answer.headers["access-control-expose-headers"].split(", "))
            assert exposed >= {"x-request-id", "request-id", "retry-after"}, "both formats' name of a request's id"


async def test_requests_per_minute(serve: Serve) -> None:
    async with serve(api_keys=KEYS, requests_per_minute=2) as client:
        anna, ben = {"Authorization": "Bearer sk-anna"}, {"Authorization": "Bearer sk-ben"}
        first = await client.post(CHAT, json=HELLO, headers=anna)
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert (await client.post(CHAT, json={}, headers=anna)).status_code == 400  # a bad request counts
        refused = await client.post(CHAT, json=HELLO, headers=anna)
        assert checked(refused, 429, "rate_limit_exceeded")["type"] == "rate_limit_error"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        assert 0 < int(refused.headers["retry-after-ms"]) <= 30_000
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert (await client.get("/v1/models", headers=anna)).status_code == 200
        assert (await client.post(CHAT, json=HELLO, headers=ben)).status_code == 200


async def test_tokens_per_minute(serve: Serve) -> None:
    async with serve(tokens_per_minute=100) as client:
        answer = await client.post(CHAT, json=HELLO | {"n": 2})
        assert answer.headers["x-ratelimit-limit-tokens"] == "100"
        used = answer.json()["usage"]["total_tokens"]
        after = await client.post(CHAT, json={})
        assert int(after.headers["x-ratelimit-remaining-tokens"]) - (100 - used) in (0, 1)
        body = HELLO | {"messages": [{"role": "user", "content": "word " * 90}], "max_tokens": 5}
        async with client.stream("POST", CHAT, json=body | {"stream": True}) as stream:
            await stream.aread()
        assert checked(await client.post(CHAT, json=HELLO), 429, "rate_limit_exceeded")


async def test_requests_at_once(serve: Serve, engine: ScriptedEngine) -> None:
    """Who has been answered, or has failed, may ask again."""
    async with serve(max_concurrent=1) as client:
        engine.hold(0)
        first = asyncio.create_task(client.post(CHAT, json=HELLO))
        await engine.submit_seen.wait()
        checked(await client.post(CHAT, json=HELLO), 429, "rate_limit_exceeded")
        engine.release(100)
        assert (await first).status_code == 200
        checked(await client.post(CHAT, json=HELLO | {"n": 0}), 400, "integer_below_min_value")
        assert (await client.post(CHAT, json=HELLO)).status_code == 200


async def test_addresses_have_limits_of_their_own(engine: ScriptedEngine) -> None:
    app = create_app(Settings(EngineConfig("unused"), requests_per_minute=1), engine, KeyRing())

    async def ask(address: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return (await client.post(CHAT, json=HELLO, headers={"X-Forwarded-For": "192.0.2.99"})).status_code

    addresses = ["192.0.2.1", "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"]
    assert [await ask(address) for address in addresses] == [200, 429, 200, 200, 429]


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({"X-Big": "x" * 40_000}, "/health/live"),
        ({f"X-{number}": "x" for number in range(120)}, "/health/live"),
        ({}, "/health/live?" + "x" * 40_000),
        ({}, "/" + "x" * 40_000),
    ],
)
async def test_a_large_head(serve: Serve, headers: dict[str, str], path: str) -> None:
    async with serve(api_keys=KEYS) as client:
        checked(await client.get(path, headers=headers), 431, None)


@pytest.mark.parametrize(
    "path", ["/health", "/health/live", "/health/ready", "/v1/models", f"/v1/models/{NAME}", "/metrics", "/nowhere"]
)
async def test_head_is_get_without_a_body(serve: Serve, path: str) -> None:
    async with serve() as client:
        get, head = await client.get(path), await client.head(path)
    assert head.status_code == get.status_code
    assert head.content == b""
    assert head.headers["content-type"] == get.headers["content-type"]
    if path != "/metrics":  # counts something new each time
        assert head.headers["content-length"] == get.headers["content-length"]


async def test_head_of_a_post_route(serve: Serve) -> None:
    async with serve() as client:
        head = await client.head(CHAT)
    assert (head.status_code, head.content, head.headers["allow"]) == (405, b"", "POST")


@pytest.mark.parametrize(
    ("path", "methods"),
    [(CHAT, "POST"), ("/v1/models", "GET, HEAD"), ("/v1/responses/resp_1", "DELETE, GET, HEAD")],
)
async def test_a_wrong_method_is_told_all_right_ones(serve: Serve, path: str, methods: str) -> None:
    async with serve() as client:
        answer = await client.request("PUT", path)
    assert (answer.status_code, answer.headers.get_list("allow")) == (405, [methods])


async def test_caches_are_kept_apart_on_request(serve: Serve, engine: ScriptedEngine) -> None:
    async with serve(api_keys=KEYS, isolate_prefix_cache=True) as client:
        for key in ("sk-anna", "sk-anna", "sk-ben"):
            await client.post(CHAT, json=HELLO, headers={"api-key": key})
    async with serve(api_keys=KEYS) as client:
        await client.post(CHAT, json=HELLO, headers={"api-key": "sk-anna"})
    first, second, third, shared = (request.cache_salt for request, *_ in engine.submitted)
    assert first == second != third
    assert len(first) == 16
    assert shared == b""


async def called(limit: int = 1000, method: str = "GET", headers: Sequence[tuple[bytes, bytes]] = ()) -> list[Message]:
    """What the layer sends for a request, around an app that answers in two pieces."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await send({"type": "http.response.body", "body": b"cd"})

    async def receive() -> Message:
        raise AssertionError("no body is read")

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "/x", "raw_path": b"/x", "query_string": b"y=1"}
    await HeadChecks(app, False, frozenset(), limit)(
        scope | {"headers": list(headers), "client": ("a", 1)}, receive, send
    )
    return sent


async def test_no_piece_of_a_body_follows_a_head() -> None:
    head, *pieces = await called(method="HEAD")
    assert (head["status"], dict(head["headers"])[b"content-length"]) == (200, b"4")
    assert [(piece["body"], piece.get("more_body", False)) for piece in pieces] == [(b"", False)]
    assert [piece["body"] for piece in (await called())[1:]] == [b"ab", b"cd"]


async def test_a_head_is_as_large_as_its_lines() -> None:
    """Path, query and every header with its colon, space and line end."""
    headers = [(b"a", b"12345"), (b"bc", b"")]
    size = len("/x") + len("y=1") + sum(len(f"{name.decode()}: {value.decode()}\r\n") for name, value in headers)
    for limit, status in ((size, 200), (size - 1, 431)):
        sent = await called(limit, headers=headers)
        assert sent[0]["status"] == status
    for count, status in ((100, 200), (101, 431)):
        sent = await called(10_000, headers=[(b"a", b"b")] * count)
        assert sent[0]["status"] == status


@pytest.mark.parametrize(
    ("wait_s", "seconds", "milliseconds", "told"),
    [
        (0.0, "1", "1", "0.001"),
        (0.0204, "1", "21", "0.020"),
        (2.5, "3", "2500", "2.500"),
        (90.0, "60", "60000", "90.0"),
    ],
)
def test_how_long_a_denied_caller_waits(wait_s: float, seconds: str, milliseconds: str, told: str) -> None:
    error = rate_error(Denial("Too fast.", wait_s))
    assert dict(error.headers) == {"Retry-After": seconds, "retry-after-ms": milliseconds}
    assert error.message.startswith(f"Too fast. Please try again in {told}")
