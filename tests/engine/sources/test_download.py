"""A large file over HTTP: interrupted, changed, damaged, or no file at all."""

from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from engine.sources.download import RemoteFile, download
from engine.sources.names import FetchFailed
from tests.engine.sources.ai_hub.stand_ins import FILES, archive
from tests.engine.sources.file_server import Store


def fetch(store: Store, folder: Path, sha256: str | None = None, size: int = 0) -> tuple[Path, list[int]]:
    """The file, and what its bar was told."""
    told: list[int] = []
    with httpx.Client() as client:
        return download(RemoteFile("a.zip", size, sha256, store.url), folder / "a.zip", told.append, client), told


def test_an_interrupted_fetch_goes_on(store: Store, tmp_path: Path) -> None:
    store.break_after = [1000, 5000]
    made, told = fetch(store, tmp_path)
    assert made.read_bytes() == store.content
    assert store.ranges == [None, "bytes=1000-", "bytes=6000-"]
    assert sum(told) == len(store.content)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_new_process_goes_on_where_the_last_one_stopped(store: Store, tmp_path: Path) -> None:
    store.break_after = [2000, 0]
    with pytest.raises(FetchFailed, match="the same command goes on with it"):
        fetch(store, tmp_path)
    assert not (tmp_path / "a.zip").exists()
    made, told = fetch(store, tmp_path)
    assert store.ranges[-1] == "bytes=2000-" and made.read_bytes() == store.content
    assert told[0] == 2000 and sum(told) == len(store.content)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_whole_file_that_nobody_verified_is_not_fetched_again(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    known = sha256(store.content).hexdigest() if is_known else None
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("engine.sources.download._verify", interrupted)
        fetch(store, tmp_path, known, len(store.content))
    made, told = fetch(store, tmp_path, known, len(store.content))
    assert made.read_bytes() == store.content
    assert (len(store.ranges), told) == (1, [len(store.content)])


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_file_that_changed_starts_again(store: Store, tmp_path: Path) -> None:
    store.break_after = [2000, 0]
    with pytest.raises(FetchFailed):
        fetch(store, tmp_path)
    store.content = archive(FILES, "newer/")
    store.tell_the_truth()
    made, told = fetch(store, tmp_path)
    assert made.read_bytes() == store.content and sum(told) == len(store.content)


def test_a_known_hash_is_compared(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match=r"^a\.zip came with another checksum than its server says; it was removed"):
        fetch(store, tmp_path, "0" * 64)
    assert list(tmp_path.iterdir()) == []
    assert fetch(store, tmp_path, sha256(store.content).hexdigest())[0].exists()


@pytest.mark.parametrize(("kind", "etag"), [("sha256", '"parts-3"'), ("md5", '"' + "0" * 32 + '"')])
def test_a_wrong_checksum_is_refused_and_removed(store: Store, tmp_path: Path, kind: str, etag: str) -> None:
    store.etag, store.sha256 = etag, "AAAA" if kind == "sha256" else ""
    with pytest.raises(FetchFailed, match="another checksum"):
        fetch(store, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("header", ["", "-customer-algorithm"])
def test_the_etag_of_an_encrypted_file_is_no_checksum(store: Store, tmp_path: Path, header: str) -> None:
    store.etag, store.sha256 = '"' + "0" * 32 + '"', ""
    store.headers = {f"x-amz-server-side-encryption{header}": "AES256" if header else "aws:kms"}
    assert fetch(store, tmp_path)[0].read_bytes() == store.content


@pytest.mark.parametrize(
    ("status", "content_type", "message"), [(403, "application/xml", "answered 403"), (200, "text/html", "web page")]
)
def test_what_is_not_the_file_is_refused(
    store: Store, tmp_path: Path, status: int, content_type: str, message: str
) -> None:
    store.status, store.content_type = status, content_type
    with pytest.raises(FetchFailed, match=message):
        fetch(store, tmp_path)
    assert not (tmp_path / "a.zip").exists()
