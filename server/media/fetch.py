"""Images that a request names by URL, fetched where the setting `media` allows it: hosts over HTTP, files of folders.

A host is resolved once, each of its addresses is checked, and the connection goes to the checked one: a name that
leads elsewhere a moment later changes nothing. Every redirect is checked like the first URL. Proxies are not used.
"""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import httpx

from engine.errors import InvalidRequest
from engine.files import FileRefused, read_bytes
from engine.vision.given import images_of
from engine.vision.question import LIMITS
from server.media.sources import MediaSources

FETCH_S = 10.0  # of one image, redirects included
REDIRECTS = 3
AT_ONCE = 8  # of all requests
SCHEMES = ("http", "https")
TYPES = ("image/", "application/octet-stream", "binary/octet-stream")
Resolve = Callable[[str, int], Awaitable[list[str]]]


class NotFetched(Exception):
    """An image cannot be had; the message is the end of a sentence and tells nothing of the server's network."""


async def addresses_of(host: str, port: int) -> list[str]:
    """What a name leads to, as the system resolves it. OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=0, proto=6)
    return [str(place[0]) for *_, place in found]


class MediaFetcher:
    """Fetches for all requests of a server; one event loop."""

    def __init__(self, sources: MediaSources, resolve: Resolve = addresses_of) -> None:
        self._sources = sources
        self._resolve = resolve
        self._places = asyncio.Semaphore(AT_ONCE)
        self._context: ssl.SSLContext | None = None

    async def fetched(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The messages with data URLs instead of those that can be fetched. InvalidRequest naming the image's field.

        URLs of a kind that is not allowed stay, and are refused where the images are read.
        """
        wanted = {
            image.url: image.param for image in images_of(messages) if not image.url[:5].lower().startswith("data:")
        }
        wanted = {url: param for url, param in wanted.items() if self._takes(url)}
        if not wanted:
            return [dict(message) for message in messages]
        async with asyncio.TaskGroup() as group:
            tasks = {url: group.create_task(self._outcome(url)) for url in wanted}
        found: dict[str, str] = {}
        for url, task in tasks.items():
            content = task.result()
            if isinstance(content, NotFetched):
                raise InvalidRequest(f"'{wanted[url]}' cannot be fetched: {content}.", wanted[url])
            found[url] = f"data:image/any;base64,{base64.b64encode(content).decode('ascii')}"
        return [dict(message) | {"content": _replaced(message.get("content"), found)} for message in messages]

    def _takes(self, url: str) -> bool:
        scheme = url.partition(":")[0].lower()
        return bool(self._sources.folders if scheme == "file" else scheme in SCHEMES and self._sources.hosts)

    async def _outcome(self, url: str) -> bytes | NotFetched:
        try:
            async with self._places:
                if url[:5].lower() == "file:":
                    return await asyncio.get_running_loop().run_in_executor(None, self._read, url)
                async with asyncio.timeout(FETCH_S):
                    return await self._follow(url)
        except NotFetched as error:
            return error
        except TimeoutError:
            return NotFetched(f"it took longer than {FETCH_S:.0f} s")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
            return NotFetched("its server gave no answer")

    def _read(self, url: str) -> bytes:
        parts, folders = urlsplit(url), [folder.resolve() for folder in self._sources.folders]
        with suppress(OSError, ValueError):
            path = Path(url2pathname(parts.path)).resolve(strict=True)
            if parts.netloc in ("", "localhost") and any(path.is_relative_to(folder) for folder in folders):
                try:
                    return read_bytes(path, LIMITS.most_bytes)
                except FileRefused as error:
                    raise NotFetched(str(error)) from None
        raise NotFetched("there is no such file in a folder that this server takes images from")

    async def _follow(self, url: str) -> bytes:
        if self._context is None:
            self._context = await asyncio.get_running_loop().run_in_executor(None, ssl.create_default_context)
        place = httpx.URL(url)
        options: dict[str, Any] = {"verify": self._context, "trust_env": False, "timeout": FETCH_S}
        async with httpx.AsyncClient(**options) as client:
            for _ in range(1 + REDIRECTS):
                found = await self._get(client, place)
                if isinstance(found, bytes):
                    return found
                place = place.join(found)
        raise NotFetched(f"it is redirected more than {REDIRECTS} times")

    async def _get(self, client: httpx.AsyncClient, place: httpx.URL) -> bytes | str:
        """The content, or where it has moved to."""
        address = await self._checked_address(place)
        headers = {"Host": place.netloc.decode("ascii"), "Accept": "image/*", "Accept-Encoding": "identity"}
        extensions = {"sni_hostname": place.raw_host.decode("ascii")}
        async with client.stream(
            "GET", place.copy_with(host=address), headers=headers, extensions=extensions
        ) as answer:
            if answer.has_redirect_location:
                return answer.headers["location"]
            if answer.status_code != httpx.codes.OK:
                raise NotFetched(f"its server answered {answer.status_code}")
            kind = answer.headers.get("content-type", TYPES[0]).lower()
            if not kind.startswith(TYPES) or "content-encoding" in answer.headers:
                raise NotFetched("its server sent something else than an image")
            content = bytearray()
            async for chunk in answer.aiter_raw():
                content += chunk
                if len(content) > LIMITS.most_bytes:
                    raise NotFetched(f"it is larger than {LIMITS.most_bytes} bytes")
        return bytes(content)

    async def _checked_address(self, place: httpx.URL) -> str:
        host = place.host
        if place.scheme not in SCHEMES or place.userinfo or not self._sources.takes_host(host):
            raise NotFetched("this server takes no images from there")
        try:
            found = await self._resolve(host, place.port or (443 if place.scheme == "https" else 80))
        except OSError:
            found = []
        if not found or not all(map(self._sources.reaches, found)):
            raise NotFetched("its host has no address that this server takes images from")
        return found[0]


def _replaced(content: Any, found: Mapping[str, str]) -> Any:
    if isinstance(content, str) or not isinstance(content, Sequence):
        return content
    is_image = [isinstance(part, Mapping) and part.get("type") == "image" for part in content]
    return [
        {**part, "url": found.get(part["url"], part["url"])} if shown else part
        for shown, part in zip(is_image, content, strict=True)
    ]
