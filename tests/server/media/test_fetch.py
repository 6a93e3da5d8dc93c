"""Images by URL: a server on the loopback that misbehaves, and a resolver that leads to it or elsewhere."""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InvalidRequest
from engine.vision.given import MOST_IMAGES
from engine.vision.question import LIMITS
from server.media import fetch
from server.media.fetch import MediaFetcher
from server.media.sources import MediaSources

PIXELS = b"\x89PNG and what follows"
MOST = 2 * LIMITS.most_bytes
PARAM = "messages[0].content[0].image_url"


@dataclass
class Web:
    """What the server saw, and the names that the resolver knows; every name leads to the loopback at first."""

    port: int = 0
    requests: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    answers: dict[str, bytes] = field(default_factory=dict)

    async def resolve(self, host: str, _port: int) -> list[str]:
        self.asked.append(host)
        return self.names.get(host, ["127.0.0.1"])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.requests.append(head)
        path = head.split(" ")[1]
        if path != "/silent":
            writer.write(self.answers.get(path) or said(PIXELS))
            writer.write_eof()
        else:
            await reader.read()
        writer.close()

    def fetcher(self, media: str = "images.example,127.0.0.1") -> MediaFetcher:
        return MediaFetcher(MediaSources.of(media), MOST, self.resolve)


def said(content: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}", "connection: close", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def moved(place: str) -> bytes:
    return said(b"", "302 Found", f"location: {place}")


@asynccontextmanager
async def web() -> AsyncIterator[Web]:
    found = Web()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


def shown(*urls: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image", "url": url} for url in urls]}]


async def fetched(fetcher: MediaFetcher, url: str) -> bytes:
    [message] = await fetcher.fetched(shown(url))
    return base64.b64decode(message["content"][0]["url"].partition(",")[2])


async def refused(fetcher: MediaFetcher, url: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        await fetcher.fetched(shown(url))
    assert caught.value.param == PARAM
    return str(caught.value)


async def test_an_image_by_its_url() -> None:
    """Each host is resolved once; what is connected to is the address that was checked."""
    async with web() as found:
        place = f"http://images.example:{found.port}"
        found.answers["/moved"] = moved("/here?a=b%20c")
        assert await fetched(found.fetcher(), f"{place}/a.png") == PIXELS
        assert await fetched(found.fetcher(), f"{place}/moved") == PIXELS
        assert found.asked == ["images.example"] * 3
        assert [head.split(" ")[1] for head in found.requests] == ["/a.png", "/moved", "/here?a=b%20c"]
        assert all(f"Host: images.example:{found.port}\r\n" in head for head in found.requests)
        assert all("Accept-Encoding: identity\r\n" in head for head in found.requests)


async def test_the_same_url_is_fetched_once_and_text_stays() -> None:
    async with web() as found:
        url = f"http://images.example:{found.port}/a"
        messages = [{"role": "system", "content": "be brief"}, *shown(url, "data:image/png;base64,AA==", url)]
        system, user = await found.fetcher().fetched(messages)
        urls = [part["url"] for part in user["content"]]
        assert system["content"] == "be brief" and urls[0] == urls[2] != urls[1] == "data:image/png;base64,AA=="
        assert len(found.requests) == 1


@pytest.mark.parametrize(
    "addresses",
    [[], ["10.0.0.1"], ["169.254.169.254"], ["::ffff:127.0.0.1"], ["::1"], ["93.184.215.14", "192.168.0.1"]],
)
async def test_names_that_lead_to_other_than_public_addresses(addresses: list[str]) -> None:
    """In the same words as names that lead nowhere: an answer does not map the server's network."""
    async with web() as found:
        found.names["images.example"] = addresses
        message = await refused(found.fetcher("images.example"), f"http://images.example:{found.port}/a")
        assert message == f"'{PARAM}' cannot be fetched: its host has no address that this server takes images from."
        assert not found.requests


async def test_a_name_that_leads_elsewhere_behind_a_redirect() -> None:
    """DNS rebinding: what a name led to before does not count for the next hop."""
    async with web() as found:

        async def rebind(host: str, _port: int) -> list[str]:
            found.asked.append(host)
            return ["127.0.0.1"] if len(found.asked) == 1 else ["127.0.0.2"]

        found.answers["/a"] = moved(f"http://images.example:{found.port}/b")
        fetcher = MediaFetcher(MediaSources.of("images.example,127.0.0.1"), MOST, rebind)
        assert "no address" in await refused(fetcher, f"http://images.example:{found.port}/a")
        assert len(found.requests) == 1


@pytest.mark.parametrize(
    "place",
    ["http://169.254.169.254/latest/meta-data", "http://other.example/", "file:///etc/passwd", "ftp://127.0.0.1/a"],
)
async def test_redirects_are_checked_like_the_first_url(place: str) -> None:
    async with web() as found:
        found.answers["/a"] = moved(place)
        message = await refused(found.fetcher(), f"http://images.example:{found.port}/a")
        assert "this server takes no images from there" in message
        assert len(found.requests) == 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (moved("/a"), "it is redirected more than 3 times"),
        (said(b"", "404 Not Found"), "its server answered 404"),
        (said(b"<p>", "200 OK", "content-type: text/html"), "its server sent something else than an image"),
        (said(b"a", "200 OK", "content-encoding: gzip"), "its server sent something else than an image"),
        (said(bytes(LIMITS.most_bytes + 1)), f"it is larger than {LIMITS.most_bytes} bytes"),
        (b"HTTP/9 what\r\n\r\n", "its server gave no answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut", "its server gave no answer"),
    ],
)
async def test_servers_that_give_no_image(answer: bytes, reason: str) -> None:
    async with web() as found:
        found.answers["/a"] = answer
        message = await refused(found.fetcher(), f"http://images.example:{found.port}/a")
        assert message == f"'{PARAM}' cannot be fetched: {reason}."


async def test_a_server_that_never_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "FETCH_S", 0.05)
    async with web() as found:
        assert "it took longer" in await refused(found.fetcher(), f"http://images.example:{found.port}/silent")


@pytest.mark.parametrize("url", ["http://", "http://a:b@images.example/", "http://[::1/", "https://other.example/x"])
async def test_urls_that_are_odd_or_not_allowed(url: str) -> None:
    assert "cannot be fetched" in await refused(Web().fetcher(), url)


async def test_nothing_is_fetched_unless_it_is_allowed() -> None:
    """The URLs stay and are refused where images are read."""
    messages = shown("http://images.example/a", "file:///etc/passwd", "gopher://a")
    assert await Web().fetcher("").fetched(messages) == messages
    with pytest.raises(InvalidRequest, match=f"{MOST_IMAGES} are the most"):
        await Web().fetcher().fetched(shown(*("http://images.example/a",) * (MOST_IMAGES + 1)))


async def test_files_of_a_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "images", tmp_path / "secret"
    folder.mkdir()
    outside.write_bytes(b"secret")
    image = folder / "a b.png"
    image.write_bytes(PIXELS)
    fetcher = Web().fetcher(str(folder))
    assert await fetched(fetcher, image.as_uri()) == PIXELS
    wrong = [outside.as_uri(), f"{folder.as_uri()}/../secret", f"{folder.as_uri()}/%2e%2e/secret", folder.as_uri()]
    wrong += [
        "file:////elsewhere/share/a.png",
        f"{folder.as_uri()}/gone",
        f"file://elsewhere{image}",
        f"{folder.as_uri()}/a%00b",
        "file:",
    ]
    if sys.platform != "win32":
        (folder / "link").symlink_to(outside)
        os.mkfifo(folder / "pipe")
        wrong += [(folder / "link").as_uri(), f"{folder.as_uri()}/pipe"]
    for url in wrong:
        assert "cannot be fetched: " in await refused(fetcher, url), url


async def test_images_of_a_request_that_are_too_large_together(tmp_path: Path) -> None:
    """By URL they take no more than in the body."""
    (tmp_path / "a").write_bytes(PIXELS)
    async with web() as found:
        urls = (f"http://images.example:{found.port}/a", (tmp_path / "a").as_uri())
        sources = MediaSources.of(f"images.example,127.0.0.1,{tmp_path}")
        for most, is_enough in ((2 * len(PIXELS), True), (2 * len(PIXELS) - 1, False)):
            fetcher = MediaFetcher(sources, most, found.resolve)
            if is_enough:
                assert await fetcher.fetched(shown(*urls))
                continue
            with pytest.raises(InvalidRequest, match=f"lie elsewhere are larger than {most} bytes"):
                await fetcher.fetched(shown(*urls))


async def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(LIMITS.most_bytes + 1)
    assert "it is larger than" in await refused(Web().fetcher(str(tmp_path)), (tmp_path / "large").as_uri())
