"""Which types of body are read as JSON: everywhere only what says so, under /api whatever no browser sent."""

from collections.abc import Mapping
from types import MappingProxyType

import httpx
import pytest

from tests.server.scripted_engine import NAME

BODY = b'{"model": "%s", "messages": [{"role": "user", "content": "hello"}], "stream": false}' % NAME.encode()
NONE: Mapping[str, str] = MappingProxyType({})
JSON, FORM, TEXT = "application/json", "application/x-www-form-urlencoded", "text/plain;charset=UTF-8"


async def status(client: httpx.AsyncClient, path: str, kind: str | None, headers: Mapping[str, str] = NONE) -> int:
    sent = headers | ({} if kind is None else {"content-type": kind})
    return (
        await client.post(path, content=BODY, headers={key.replace("_", "-"): sent[key] for key in sent})
    ).status_code


@pytest.mark.parametrize("kind", [None, FORM, TEXT, JSON, "application/octet-stream"])
async def test_ollamas_clients_need_not_say_that_it_is_json(client: httpx.AsyncClient, kind: str | None) -> None:
    assert await status(client, "/api/chat", kind) == 200
    assert await status(client, "/v1/chat/completions", kind) == (200 if kind == JSON else 415)


@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
async def test_a_page_of_another_site_cannot_send_what_needs_no_preflight(
    client: httpx.AsyncClient, headers: dict[str, str]
) -> None:
    for kind in (None, FORM, TEXT, "multipart/form-data; boundary=x"):
        assert await status(client, "/api/chat", kind, headers) == 415
    assert await status(client, "/api/chat", JSON, headers) == 200


async def test_what_is_no_json_is_refused_whatever_it_is_called(client: httpx.AsyncClient) -> None:
    answer = await client.post("/api/chat", content=b"model=demo&stream=false", headers={"content-type": FORM})
    assert (answer.status_code, "not valid JSON" in answer.json()["error"]) == (400, True)
    assert (await client.post("/api/chat")).status_code == 400
