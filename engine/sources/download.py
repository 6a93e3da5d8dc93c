"""Files over HTTP: continued where the connection or the process ended, checked, and renamed into place when whole."""

import base64
import hashlib
import os
import re
import shutil
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import msgspec

from engine.files import put_in_place
from engine.sources.names import FetchFailed
from engine.sources.publish import draft_beside, publish, refuse

ATTEMPTS = 5
TIMEOUT = httpx.Timeout(60.0, connect=10.0)
COPY_BYTES = 1 << 20
_MD5 = re.compile(r'^"?([0-9a-f]{32})"?$')
_ETAG, _SHA256 = "etag", "x-amz-checksum-sha256"
# S3's ETag is no MD5 where it has encrypted the file with a key of its key service, or of a customer.
_KEY_SERVICE, _CUSTOMER_KEY = "x-amz-server-side-encryption", "x-amz-server-side-encryption-customer-algorithm"
_TOO_MANY = 429
# Called with bytes that have come; with those of a part file that is thrown away, as a negative number.
Advance = Callable[[int], None]
Note = TypeVar("Note", bound=msgspec.Struct)


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a repository or at an address."""

    name: str
    size: int = 0  # in bytes, 0 where nobody says
    sha256: str | None = None  # hexadecimal digits
    url: str = ""
    blob: str = ""  # git's name of the content, which small files have instead


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """What a fetch would do. missing: of the files, those that are not here. folder: that they come into. commit: of a
    repository of the hub."""

    origin: str
    files: tuple[RemoteFile, ...]
    missing: tuple[RemoteFile, ...]
    folder: Path
    commit: str = ""

    @property
    def size(self) -> int:
        """Of what is missing, in bytes; what no server says counts nothing."""
        return sum(file.size for file in self.missing)


class PartState(msgspec.Struct):
    """Kept beside an unfinished file: what it is the beginning of."""

    url: str
    headers: dict[str, str]  # of the answer: what `_verify` reads


OFFLINE = "HF_HUB_OFFLINE is set: run the same command without it once"


class ServerSilent(Exception):
    """A server did not answer as it should; the message says how, and goes on with what to do."""


def is_offline() -> bool:
    """Whether nothing may be fetched; the variable of `huggingface_hub` holds for every server."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def counted(files: int) -> str:
    return f"{files} file{'s' * (files != 1)}"


def check_room(name: str, size: int, folder: Path) -> None:
    """Raise FetchFailed unless so many bytes are free where the folder is, or will be."""
    existing = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise FetchFailed(f"{name} takes {megabytes(size)}, and {megabytes(free)} are free in {folder}")


def check_status(url: str, status: int, advice: str = "") -> None:
    """FetchFailed for what the server refuses, ServerSilent for what may pass. advice: where a login is asked for."""
    if status == _TOO_MANY:
        raise ServerSilent(f"{url} was asked too often (429); wait a minute and run the same command again")
    if status >= httpx.codes.INTERNAL_SERVER_ERROR:
        raise ServerSilent(f"{url} answered {status}; run the same command again later")
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise FetchFailed(f"{url} is not open to everybody (the server answered {status}){advice}")
    if status not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
        raise FetchFailed(f"{url} cannot be fetched: the server answered {status}; check the name")


def reason_of(error: BaseException) -> str:
    """Its first line, without what a sentence goes on with."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def unreachable(place: str, error: BaseException) -> ServerSilent:
    return ServerSilent(f"{place} cannot be reached ({reason_of(error)}); run the same command again with a connection")


def part_of(target: Path) -> Path:
    """What has come of a file that is not whole."""
    return target.with_name(f"{target.name}.part")


def download(file: RemoteFile, target: Path, advance: Advance, client: httpx.Client) -> Path:
    """Fetch a file into target. An interrupted one goes on at the next call, unless the file on the server changed.
    Raises FetchFailed when the server refuses, the file stays incomplete, or its checksum is wrong."""
    part = part_of(target)
    advance(_size(part))
    for _ in range(ATTEMPTS):
        before = _size(part)
        try:
            headers = _fetch(file, part, advance, client)
        except httpx.TransportError as error:
            if _size(part) > before:
                continue
            raise _not_whole(file, str(error) or type(error).__name__) from error
        except ServerSilent as error:
            raise FetchFailed(str(error)) from error
        except OSError as error:
            raise FetchFailed(f"{part} cannot be written: {error.strerror or error}") from error
        _verify(file, part, headers)
        put_in_place(part, target)
        _state_file(part).unlink(missing_ok=True)
        return target
    raise _not_whole(file, f"the connection ended {ATTEMPTS} times")


def _not_whole(file: RemoteFile, reason: str) -> FetchFailed:
    return FetchFailed(f"{file.name} was not fetched whole ({reason}); the same command goes on with it")


def _fetch(file: RemoteFile, part: Path, advance: Advance, client: httpx.Client) -> httpx.Headers:
    """Append what is missing to the part file, if anything is; the headers of the last answer."""
    have, state = _size(part), read_note(_state_file(part), PartState)
    request = {"Accept-Encoding": "identity"}
    etag = state.headers.get(_ETAG, "") if state is not None else ""
    if have and state is not None and state.url == file.url and (etag or file.sha256):
        if have == file.size:  # whoever fetched it ended before it was verified
            return httpx.Headers(state.headers)
        request |= {"Range": f"bytes={have}-"} | ({"If-Range": etag} if etag else {})
    with client.stream("GET", file.url, headers=request, follow_redirects=True) as answer:
        if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
            _discard(part)
            raise FetchFailed(f"{file.url} changed on the server while it was fetched; run the same command again")
        check_status(file.url, answer.status_code)
        if "text/html" in answer.headers.get("content-type", ""):
            raise FetchFailed(f"{file.url} cannot be fetched: the server sent a web page instead of the file")
        resumed = answer.status_code == httpx.codes.PARTIAL_CONTENT
        if not resumed:
            advance(-have)
        total = (have if resumed else 0) + int(answer.headers.get("content-length", 0))
        part.parent.mkdir(parents=True, exist_ok=True)
        facts = (_ETAG, _SHA256, _KEY_SERVICE, _CUSTOMER_KEY)
        told = {name: answer.headers[name] for name in facts if name in answer.headers}
        _state_file(part).write_bytes(msgspec.json.encode(PartState(file.url, told)))
        with part.open("ab" if resumed else "wb") as stream:
            for piece in answer.iter_raw():
                stream.write(piece)
                advance(len(piece))
    if total and _size(part) != total:
        raise httpx.ReadError(f"{_size(part)} of {total} bytes came")
    return answer.headers


def _verify(file: RemoteFile, part: Path, headers: httpx.Headers) -> None:
    """Compare with the hash that is known, or that the server names: S3's sha256, or an ETag that is the file's MD5."""
    named = headers.get(_SHA256)
    is_content = not (headers.get(_KEY_SERVICE, "").startswith("aws:kms") or _CUSTOMER_KEY in headers)
    match = _MD5.match(headers.get(_ETAG, "")) if is_content else None
    wanted, found = "", ""
    if file.sha256:
        wanted, found = file.sha256, digest(part)
    elif named:
        wanted, found = named, base64.b64encode(bytes.fromhex(digest(part))).decode()
    elif match:
        wanted, found = match[1], digest(part, "md5")
    # An upload in parts has neither; an archive's own checksums are tested when it is unpacked.
    if found != wanted or file.size not in (0, _size(part)):
        _discard(part)
        raise FetchFailed(f"{file.name} came with another checksum than its server says; it was removed, try again")


def digest(path: Path, kind: str = "sha256") -> str:
    """In hexadecimal digits. OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def git_blob(path: Path) -> str:
    """The name that git gives the content: the SHA-1 of a header with the size, and of it. OSError."""
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_file(part).unlink(missing_ok=True)


def _state_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def read_note(path: Path, kind: type[Note]) -> Note | None:
    """What a JSON file of ours says; None where there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def unpack(archive: Path, folder: Path) -> Path:
    """Extract a zip into a new folder; a single folder inside it is taken as the model itself. Raises FetchFailed for a
    damaged or hostile archive, which is removed; then no folder is left."""
    try:
        with draft_beside(folder) as draft:
            _extract(archive, draft)
            entries = list(draft.iterdir())
            inner = entries[0] if len(entries) == 1 and entries[0].is_dir() else draft
            publish(inner, folder, replaces=refuse)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        archive.unlink(missing_ok=True)
        raise FetchFailed(f"{archive.name} is damaged ({error}); it was removed, try again") from error
    except OSError as error:
        raise FetchFailed(f"{archive.name} cannot be unpacked into {folder}: {error.strerror or error}") from error
    return folder


def _extract(archive: Path, draft: Path) -> None:
    with zipfile.ZipFile(archive) as content:
        members = [member for member in content.infolist() if not member.is_dir()]
        check_room(f"what {archive.name} unpacks to", sum(member.file_size for member in members), draft)
        root = draft.resolve()
        for member in members:
            target = (root / member.filename).resolve()
            if not target.is_relative_to(root):
                raise FetchFailed(f"{archive.name} has an entry outside its folder: {member.filename}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with content.open(member) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, COPY_BYTES)
