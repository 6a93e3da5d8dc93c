"""One large file over HTTP, taken up again where it stopped, checked against what the server says of it."""

import base64
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from engine.hub.catalogue import PullError

ATTEMPTS = 5
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_MD5 = re.compile(r'^"?([0-9a-f]{32})"?$')


class PartState(msgspec.Struct):
    """Kept beside an unfinished file: what it is the beginning of."""

    url: str
    etag: str


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Told of every piece: start(total bytes or 0, bytes already there), then advance(bytes)."""

    start: Callable[[int, int], None]
    advance: Callable[[int], None]


def download(url: str, target: Path, progress: DownloadProgress, client: httpx.Client) -> Path:
    """Fetch url into target. An interrupted one goes on at the next call, unless the file on the server changed.

    Raises PullError when the server refuses, the file stays incomplete, or its checksum is wrong.
    """
    if target.exists():
        return target
    part = target.with_name(f"{target.name}.part")
    for attempt in range(ATTEMPTS):
        before = _size(part)
        try:
            headers = _fetch(url, part, progress, client)
        except httpx.TransportError as error:
            if attempt == ATTEMPTS - 1 or _size(part) == before:
                raise PullError(f"{url} cannot be fetched: {error or type(error).__name__}; try again later") from error
            continue
        except OSError as error:
            raise PullError(f"{part} cannot be written: {error.strerror or error}") from error
        _verify(part, headers)
        os.replace(part, target)  # noqa: PTH105 (atomic on Windows too)
        _state_file(part).unlink(missing_ok=True)
        return target
    raise AssertionError("unreachable")


def _fetch(url: str, part: Path, progress: DownloadProgress, client: httpx.Client) -> httpx.Headers:
    """Append what is missing to the part file; the answer's headers."""
    have, state = _size(part), _load_state(part)
    request = {"Accept-Encoding": "identity"}
    if have and state is not None and state.url == url and state.etag:
        request |= {"Range": f"bytes={have}-", "If-Range": state.etag}
    with client.stream("GET", url, headers=request, follow_redirects=True) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            _discard(part)
            raise PullError(f"{url} changed on the server while it was fetched; try again")
        if answer.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
            raise PullError(f"{url} cannot be fetched: the server answered {answer.status_code}")
        if "text/html" in answer.headers.get("content-type", ""):
            raise PullError(f"{url} cannot be fetched: the server sent a web page instead of the file")
        resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
        start = have if resumed else 0
        total = start + int(answer.headers.get("content-length", 0))
        progress.start(total, start)
        part.parent.mkdir(parents=True, exist_ok=True)
        _state_file(part).write_bytes(msgspec.json.encode(PartState(url, answer.headers.get("etag", ""))))
        with part.open("ab" if resumed else "wb") as stream:
            for piece in answer.iter_raw():
                stream.write(piece)
                progress.advance(len(piece))
    if total and _size(part) != total:
        raise httpx.ReadError(f"{_size(part)} of {total} bytes came")
    return answer.headers


def _verify(part: Path, headers: httpx.Headers) -> None:
    """Compare with the checksum the server names: S3's sha256, or an ETag that is the file's MD5."""
    wanted = headers.get("x-amz-checksum-sha256")
    match = _MD5.match(headers.get("etag", ""))
    if wanted:
        found = base64.b64encode(_digest(part, "sha256")).decode()
    elif match:
        wanted, found = match[1], _digest(part, "md5").hex()
    else:
        return  # an upload in parts has neither; the archive's own checksums are tested when it is unpacked
    if found != wanted:
        _discard(part)
        raise PullError(
            f"{part.name} is damaged (checksum {found}, the server says {wanted}); it was removed, try again"
        )


def _digest(path: Path, kind: str) -> bytes:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).digest()


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_file(part).unlink(missing_ok=True)


def _state_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _load_state(part: Path) -> PartState | None:
    try:
        return msgspec.json.decode(_state_file(part).read_bytes(), type=PartState)
    except (OSError, msgspec.MsgspecError):
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
