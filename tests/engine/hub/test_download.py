"""A large file over HTTP: interrupted, changed, damaged, or no file at all."""

from pathlib import Path

import httpx
import pytest

from engine.hub.catalogue import PullError
from engine.hub.download import DownloadProgress, download
from tests.engine.hub.file_server import Store
from tests.engine.hub.stand_ins import FILES, archive


def silent() -> DownloadProgress:
    return DownloadProgress(lambda total, done: None, lambda amount: None)


def test_an_interrupted_fetch_goes_on(store: Store, tmp_path: Path) -> None:
    store.break_after = [1000, 5000]
    seen: list[tuple[int, int]] = []
    progress = DownloadProgress(lambda total, done: seen.append((total, done)), lambda amount: None)
    with httpx.Client() as client:
        made = download(store.url, tmp_path / "a.zip", progress, client)
    assert made.read_bytes() == store.content
    assert store.ranges == [None, "bytes=1000-", "bytes=6000-"]
    assert seen == [(len(store.content), done) for done in (0, 1000, 6000)]
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


def test_a_new_process_goes_on_where_the_last_one_stopped(store: Store, tmp_path: Path) -> None:
    store.break_after = [2000, 0]
    with httpx.Client() as client:
        with pytest.raises(PullError, match="try again later"):
            download(store.url, tmp_path / "a.zip", silent(), client)
        download(store.url, tmp_path / "a.zip", silent(), client)
    assert store.ranges[-1] == "bytes=2000-"
    assert (tmp_path / "a.zip").read_bytes() == store.content


def test_a_file_that_changed_starts_again(store: Store, tmp_path: Path) -> None:
    store.break_after = [2000, 0]
    with httpx.Client() as client:
        with pytest.raises(PullError):
            download(store.url, tmp_path / "a.zip", silent(), client)
        store.content = archive(FILES, "newer/")
        store.tell_the_truth()
        download(store.url, tmp_path / "a.zip", silent(), client)
    assert (tmp_path / "a.zip").read_bytes() == store.content


@pytest.mark.parametrize(("kind", "etag"), [("sha256", '"parts-3"'), ("md5", '"' + "0" * 32 + '"')])
def test_a_wrong_checksum_is_refused_and_removed(store: Store, tmp_path: Path, kind: str, etag: str) -> None:
    store.etag, store.sha256 = etag, "AAAA" if kind == "sha256" else ""
    with httpx.Client() as client, pytest.raises(PullError, match="is damaged"):
        download(store.url, tmp_path / "a.zip", silent(), client)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "content_type", "message"), [(403, "application/xml", "answered 403"), (200, "text/html", "web page")]
)
def test_what_is_not_the_file_is_refused(
    store: Store, tmp_path: Path, status: int, content_type: str, message: str
) -> None:
    store.status, store.content_type = status, content_type
    with httpx.Client() as client, pytest.raises(PullError, match=message):
        download(store.url, tmp_path / "a.zip", silent(), client)
