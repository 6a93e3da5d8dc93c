"""A hub on a loopback port: what `huggingface_hub` and ModelScope's client ask of it, and whatever goes wrong."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha1, sha256
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlparse

from tests.engine.sources.file_server import LeavableServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
_API = re.compile(r"/api/models/([^/]+/[^/]+?)(/revision/[^/]+|/tree/[^/]+)?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)")
_STORED = re.compile(r"/stored/([^/]+/[^/]+)/(.+)")
_MODELSCOPE = re.compile(r"/api/v1/models/([^/]+/[^/]+)/repo(/files)?")


@dataclass
class FakeHub:
    """repositories: files by name, by repository. Each of the rest is of what goes wrong.

    page: what every answer is instead, as of a network that wants a login.
    status, code: of every answer about a repository, with the hub's X-Error-Code. token: without it, 401. cut_after:
    bytes of the next answers with a file after which the connection ends. wrong: files that come as other bytes than
    the hub's hashes say, of the same length. longer: files that the hub says to be so many bytes longer.
    stall_after: as cut_after, but the connection stays open and silent. file_status: of the next answers with a file
    instead. is_redirecting: files lie in a store on another host, which must not be shown a token. has_stalled: set
    once an answer is silent.
    """

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    page: bytes = b""
    status: int = 0
    code: str = ""
    token: str = ""
    cut_after: list[int] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)
    longer: dict[str, int] = field(default_factory=dict)
    stall_after: list[int] = field(default_factory=list)
    file_status: list[int] = field(default_factory=list)
    is_redirecting: bool = False
    is_over: threading.Event = field(default_factory=threading.Event)
    has_stalled: threading.Event = field(default_factory=threading.Event)
    fetched: list[tuple[str, str | None]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def add(self, repository: str, folder: Path) -> None:
        """A folder's files as a repository."""
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        self.repositories[repository] = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def names(self) -> list[str]:
        """Of the files that were fetched, each once."""
        return sorted({name for name, _ in self.fetched})


def is_large(name: str) -> bool:
    """Whether git keeps a pointer with a SHA-256 instead of the file."""
    return name.endswith((".safetensors", ".gguf"))


def blob(content: bytes) -> str:
    """What git calls it."""
    return sha1(b"blob %d\0" % len(content) + content).hexdigest()


def pointer(content: bytes, key: str) -> dict[str, object]:
    return {key: sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}


def info(hub: FakeHub, repository: str) -> dict[str, object]:
    siblings = [
        {"rfilename": name, "size": len(content) + hub.longer.get(name, 0), "blobId": blob(content)}
        | ({"lfs": pointer(content, "sha256")} if is_large(name) else {})
        for name, content in hub.repositories[repository].items()
    ]
    return {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings, "tags": []}


def tree(hub: FakeHub, repository: str) -> list[dict[str, object]]:
    return [
        {"type": "file", "path": name, "size": len(content), "oid": blob(content)}
        | ({"lfs": pointer(content, "oid")} if is_large(name) else {})
        for name, content in hub.repositories[repository].items()
    ]


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def _answer(self, has_body: bool) -> None:
        self.hub.asked.append(self.path)
        hub, path = self.hub, unquote(urlparse(self.path).path)
        stored, modelscope = _STORED.fullmatch(path), _MODELSCOPE.fullmatch(path)
        api, file = _API.fullmatch(path), _FILE.fullmatch(path)
        repository = (stored or modelscope or api or file or [None, ""])[1]
        if hub.page:
            self._send(hub.page, {"Content-Type": "text/html"}, has_body)
        elif stored:
            self._stored(repository, stored[2], has_body)
        elif hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self._refuse(401, hub.code or "RepoNotFound", has_body)
        elif hub.status:
            self._refuse(hub.status, hub.code, has_body)
        elif repository not in hub.repositories:
            self._refuse(404, "RepoNotFound", has_body)
        elif modelscope:
            self._modelscope(repository, modelscope[2], has_body)
        elif api:
            of_tree = (api[2] or "").startswith("/tree/")
            self._send(json.dumps((tree if of_tree else info)(hub, repository)).encode(), {}, has_body)
        elif file and file[2] in hub.repositories[repository]:
            self._file(repository, file[2], has_body)
        else:
            self._refuse(404, "EntryNotFound", has_body)

    def _file(self, repository: str, name: str, has_body: bool, is_stored: bool = False) -> None:
        content = self.hub.repositories[repository][name]
        etag = sha256(content).hexdigest() if is_large(name) else blob(content)
        said = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if name in self.hub.longer:
            said["X-Linked-Size"] = str(len(content) + self.hub.longer[name])
        if has_body and self.hub.file_status:
            self._refuse(self.hub.file_status.pop(0), "", has_body)
            return
        if self.hub.is_redirecting and not is_stored:
            store = self.hub.url.replace("127.0.0.1", "localhost")
            linked = {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{etag}"'}
            linked["Location"] = f"{store}/stored/{repository}/{name}"
            self._send(b"", linked | said, has_body, 302)
            return
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        if has_body:
            self.hub.fetched.append((name, wanted))
        if start:
            said["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        sent = bytes(len(content)) if name in self.hub.wrong else content
        self._send(sent[start:], said, has_body, 206 if start else 200)

    def _stored(self, repository: str, name: str, has_body: bool) -> None:
        if "Authorization" in self.headers or "Cookie" in self.headers:
            self._refuse(400, "", has_body)
        else:
            self._file(repository, name, has_body, is_stored=True)

    def _modelscope(self, repository: str, listing: str | None, has_body: bool) -> None:
        files = self.hub.repositories[repository]
        if listing:
            entries = [
                {
                    "Path": name,
                    "Name": name,
                    "Type": "blob",
                    "Size": len(content),
                    "Sha256": sha256(content).hexdigest(),
                }
                for name, content in files.items()
            ]
            folders = [{"Path": "folder", "Name": "folder", "Type": "tree", "Size": 0, "Sha256": ""}]
            answer = {"Code": 200, "Success": True, "Message": "", "Data": {"Files": [*entries, *folders]}}
            self._send(json.dumps(answer).encode(), {"Content-Type": "application/json"}, has_body)
            return
        (name,) = parse_qs(urlparse(self.path).query)["FilePath"]
        self._file(repository, name, has_body)

    def _refuse(self, status: int, code: str, has_body: bool) -> None:
        self._send(b"", {"X-Error-Code": code} if code else {}, has_body, status)

    def _send(self, body: bytes, headers: dict[str, str], has_body: bool, status: int = 200) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if has_body:
            is_file = "X-Repo-Commit" in headers
            cut = self.hub.cut_after.pop(0) if is_file and self.hub.cut_after else len(body)
            silent = self.hub.stall_after.pop(0) if is_file and self.hub.stall_after else len(body)
            self.wfile.write(body[: min(cut, silent)])
            if silent < len(body):
                self.wfile.flush()
                self.hub.has_stalled.set()
                self.hub.is_over.wait()
            cut = min(cut, silent)
            self.close_connection = self.close_connection or cut < len(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@contextmanager
def serving_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve it while the context lasts."""
    server = LeavableServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        hub.is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()
