"""ModelScope's protocol, as its own client speaks it: the list of a repository's files, and where each of them is.
MODELSCOPE_ENDPOINT names another server, MODELSCOPE_API_TOKEN opens what is private."""

import os
from urllib.parse import quote, urlencode

import httpx
import msgspec

from engine.sources.download import TIMEOUT, RemoteFile, ServerSilent, check_status, unreachable
from engine.sources.names import FetchFailed, RepositoryName, needed_files

ENDPOINT = "https://modelscope.cn"
REVISION = "master"


class _Entry(msgspec.Struct):
    path: str = msgspec.field(name="Path")
    kind: str = msgspec.field(name="Type", default="blob")
    size: int = msgspec.field(name="Size", default=0)
    sha256: str = msgspec.field(name="Sha256", default="")


class _Entries(msgspec.Struct):
    files: list[_Entry] = msgspec.field(name="Files")


class _Answer(msgspec.Struct):
    data: _Entries = msgspec.field(name="Data")


def headers() -> dict[str, str]:
    """Of every request: the token, in both ways that the server reads it."""
    token = os.environ.get("MODELSCOPE_API_TOKEN", "")
    return {"Authorization": f"Bearer {token}", "Cookie": f"m_session_id={token}"} if token else {}


def files_of(name: RepositoryName) -> tuple[RemoteFile, ...]:
    """The files that are needed. FetchFailed for what the server refuses, ServerSilent when it does not answer."""
    endpoint = os.environ.get("MODELSCOPE_ENDPOINT", "").rstrip("/") or ENDPOINT
    place = f"{endpoint}/api/v1/models/{quote(name.repository)}/repo"
    try:
        answer = httpx.get(
            f"{place}/files",
            params={"Revision": REVISION, "Recursive": "True"},
            headers=headers(),
            timeout=TIMEOUT,
            follow_redirects=True,
        )
    except httpx.TransportError as error:
        raise unreachable(endpoint, error) from error
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise FetchFailed(
            f"{endpoint} shows no model {name.repository}: check it, or set MODELSCOPE_API_TOKEN if it is private"
        )
    check_status(f"{name.text} at {endpoint}", answer.status_code, "; set MODELSCOPE_API_TOKEN")
    try:
        entries = msgspec.json.decode(answer.content, type=_Answer).data.files
    except msgspec.MsgspecError as error:
        raise ServerSilent(
            f"{endpoint} does not answer as ModelScope does: check MODELSCOPE_ENDPOINT, or log in to the network"
        ) from error
    there = {
        entry.path: RemoteFile(
            entry.path,
            entry.size,
            entry.sha256.lower() or None,
            f"{place}?{urlencode({'Revision': REVISION, 'FilePath': entry.path})}",
        )
        for entry in entries
        if entry.kind != "tree"
    }
    return tuple(there[file] for file in needed_files(name.title, there, name.quant))
