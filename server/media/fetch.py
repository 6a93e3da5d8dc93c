"""Images that a request names by URL, fetched where the setting `media` allows it: hosts over HTTP, files of folders.

A host is resolved once, each of its addresses is checked, and the connection goes to the checked one: a name that
leads elsewhere a moment later changes nothing. Every redirect is checked like the first URL. Proxies are not used.
"""

import asyncio
import base64
import os
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
from engine.vision.given import images_of, with_images
from engine.vision.question import LIMITS
from server.media.sources import MediaSources

FETCH_S = 10.0  # of one image, with its redirects and the wait for a place
REDIRECTS = 3
AT_ONCE = 32  # of all requests
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
    """Fetches for all requests of a server; one event loop. most_bytes: of all images of a request that it fetches."""

    def __init__(self, sources: MediaSources, most_bytes: int, resolve: Resolve = addresses_of) -> None:
        self._sources = sources
        self._most_bytes = most_bytes
        self._resolve = resolve
        self._places = asyncio.Semaphore(AT_ONCE)
        self._context: ssl.SSLContext | None = None

    async def fetched(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The messages with data URLs instead of those that can be fetched. InvalidRequest naming an image's field.
        URLs of a kind that is not allowed stay, and are refused where the images are read."""
        wanted = {image.url: image.param for image in images_of(messages) if self._takes(image.url)}
        if not wanted:
            return messages
        budget = Budget(self._most_bytes)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(self._data_url(url, wanted[url], budget)) for url in wanted}
        except ExceptionGroup as failed:  # the first one ended the others
            raise failed.exceptions[0] from None
        found = {url: task.result() for url, task in tasks.items()}
        return with_images(messages, lambda part: {**part, "url": found.get(part["url"], part["url"])})

    def _takes(self, url: str) -> bool:
        scheme = url.partition(":")[0].lower()
        return bool(self._sources.folders if scheme == "file" else scheme in SCHEMES and self._sources.hosts)

    async def _data_url(self, url: str, param: str, budget: "Budget") -> str:
        try:
            async with asyncio.timeout(FETCH_S), self._places:
                if url[:5].lower() == "file:":
                    content = await asyncio.get_running_loop().run_in_executor(None, self._read, url)
                    budget.spend(len(content))
                else:
                    content = await self._follow(url, budget)
        except NotFetched as error:
            reason = str(error)
        except TimeoutError:
            reason = f"it took longer than {FETCH_S:.0f} s"
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
            reason = "its server gave no answer"
        else:
            return f"data:image/any;base64,{base64.b64encode(content).decode('ascii')}"
        raise InvalidRequest(f"'{param}' cannot be fetched: {reason}.", param)

    def _read(self, url: str) -> bytes:
        """A file that lies in a folder by its name, and still does once links are followed.
        By its name first: on Windows a look at //host/share would already talk to that host."""
        parts = urlsplit(url)
        with suppress(OSError, ValueError):
            named = Path(os.path.normpath(url2pathname(parts.path)))
            for folder in self._sources.folders if parts.netloc in ("", "localhost") else ():
                if named.is_relative_to(folder) and named.resolve(strict=True).is_relative_to(folder.resolve()):
                    try:
                        return read_bytes(named, LIMITS.most_bytes)
                    except FileRefused as error:
                        raise NotFetched(str(error)) from None
        raise NotFetched("there is no such file in a folder that this server takes images from")

    async def _follow(self, url: str, budget: "Budget") -> bytes:
        if self._context is None:
            self._context = await asyncio.get_running_loop().run_in_executor(None, ssl.create_default_context)
        place = httpx.URL(url)
        options: dict[str, Any] = {"verify": self._context, "trust_env": False, "timeout": FETCH_S}
        async with httpx.AsyncClient(**options) as client:
            for _ in range(1 + REDIRECTS):
                found = await self._get(client, place, budget)
                if isinstance(found, bytes):
                    return found
                place = place.join(found)
        raise NotFetched(f"it is redirected more than {REDIRECTS} times")

    async def _get(self, client: httpx.AsyncClient, place: httpx.URL, budget: "Budget") -> bytes | str:
        url = place.copy_with(host=await self._checked_address(place))
        headers = {"Host": place.netloc.decode("ascii"), "Accept": "image/*", "Accept-Encoding": "identity"}
        extensions = {"sni_hostname": place.raw_host.decode("ascii")}
        async with client.stream("GET", url, headers=headers, extensions=extensions) as answer:
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
                budget.spend(len(chunk))
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


class Budget:
    """Bytes that the images of a request may still take together."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most

    def spend(self, count: int) -> None:
        """Count bytes that came. NotFetched when they are too many."""
        self._left -= count
        if self._left < 0:
            raise NotFetched(f"the images of the request that lie elsewhere are larger than {self._most} bytes")
