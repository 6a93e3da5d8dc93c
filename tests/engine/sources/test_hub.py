"""The real `huggingface_hub` against a hub made here: what is fetched, what is refused, and in which words."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from engine.sources.hub import fetch_repository
from engine.sources.names import FetchFailed, RepositoryName
from tests.engine.sources.fake_hub import COMMIT, FakeHub

REPOSITORY = "org/tiny"
NAME = RepositoryName(REPOSITORY, "")
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": bytes(range(256)) * 40,
    "README.md": b"text",
    "pytorch_model.bin": b"pickle",
}
Usage = namedtuple("Usage", "total used free")


def fetch(name: RepositoryName = NAME) -> tuple[Path, list[str], int]:
    """The path, what was told, and how often the repository was new."""
    told: list[str] = []
    new: list[int] = []
    return fetch_repository(name, told.append, lambda: new.append(1)), told, len(new)


def refused(name: RepositoryName = NAME) -> str:
    with pytest.raises(FetchFailed) as caught:
        fetch(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_is_needed_comes_into_the_shared_cache_once(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = dict(FILES)
    folder, told, new = fetch()
    assert folder == tmp_path / "hub" / "models--org--tiny" / "snapshots" / COMMIT
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        name: FILES[name] for name in ("config.json", "tokenizer.json", "model.safetensors")
    }
    assert (told, new) == ([f"org/tiny: 3 files, 0.0 MB, from {hub.url}"], 1)
    hub.fetched.clear()
    assert fetch() == (folder, [], 0) and hub.fetched == []


def test_a_file_by_its_quant_and_its_parts_in_order(hub: FakeHub) -> None:
    parts = {f"big-Q8_0-0000{number}-of-00002.gguf": bytes([number]) * 99 for number in (2, 1)}
    hub.repositories[REPOSITORY] = {
        "tiny.Q4_K_M.gguf": b"GGUF" * 9,
        "mmproj-F16.gguf": b"clip",
        "config.json": b"{}",
    } | parts
    path, _, _ = fetch(RepositoryName(REPOSITORY, "q4_k_m"))
    assert path.name == "tiny.Q4_K_M.gguf" and set(hub.names()) == {path.name, "mmproj-F16.gguf"}
    path, _, _ = fetch(RepositoryName(REPOSITORY, "Q8_0"))
    assert [part.name for part in sorted(path.parent.glob("big*"))] == sorted(parts)
    assert path.name == "big-Q8_0-00001-of-00002.gguf"
    assert refused() == f"{REPOSITORY} has 2 GGUF models: name one as {REPOSITORY}:QUANT, of Q4_K_M, Q8_0"


def test_a_connection_that_is_cut_is_taken_up_where_it_ended(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)  # what is less than a chunk is not kept
    hub.repositories[REPOSITORY] = {"m.F16.gguf": FILES["model.safetensors"]}
    hub.cut_after = [1000, 2000]
    path, _, _ = fetch()
    assert path.read_bytes() == FILES["model.safetensors"]
    assert hub.fetched == [("m.F16.gguf", None), ("m.F16.gguf", "bytes=1000-"), ("m.F16.gguf", "bytes=3000-")]


@pytest.mark.parametrize(("file", "kind"), [("model.safetensors", "SHA-256"), ("tokenizer.json", "SHA-1")])
def test_another_hash_is_refused_and_removed(hub: FakeHub, file: str, kind: str) -> None:
    """Git names a small file by its SHA-1."""
    hub.repositories[REPOSITORY] = dict(FILES)
    hub.wrong = {file}
    assert refused() == f"{file} of org/tiny came with another {kind} than the hub's; try again"
    hub.wrong.clear()
    assert (fetch()[0] / file).read_bytes() == FILES[file]


def test_another_size_is_refused_and_nothing_of_it_stays(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = {"m.F16.gguf": bytes(5000)}
    hub.longer = {"m.F16.gguf": 7}
    assert refused().startswith("org/tiny was not fetched whole: Consistency check failed: file should be of size 5007")
    assert [path for path in (tmp_path / "hub").rglob("*") if path.is_file() and path.stat().st_size > 4000] == []
    hub.longer = {}
    assert fetch()[0].read_bytes() == bytes(5000)


def test_a_fetch_that_ended_goes_on_in_the_next_process(
    hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every try of the library is cut, so the fetch ends; what has come stays, under a name that nobody serves."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)
    hub.repositories[REPOSITORY] = dict(FILES)
    hub.cut_after = [9, 9, 1000, *[0] * 7]  # the small files come whole
    del hub.repositories[REPOSITORY]["README.md"]
    said = refused()
    assert said.startswith(f"org/tiny was not fetched whole: {hub.url} cannot be reached (")
    assert said.endswith("; what has come is kept")
    assert list((tmp_path / "hub").rglob("model.safetensors")) == []
    hub.status = 502
    assert "lacks model.safetensors (0.0 MB), and org/tiny at" in refused()
    hub.status, hub.cut_after = 0, []
    hub.fetched.clear()
    assert (fetch()[0] / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    ((name, start),) = hub.fetched
    assert (name, start) == ("model.safetensors", "bytes=1000-")


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (
            404,
            "RepoNotFound",
            "org/tiny is no file or folder here, and {url} shows no model of that name: check it, or",
        ),
        (401, "RepoNotFound", "or set HF_TOKEN if it is private"),
        (401, "GatedRepo", "org/tiny is gated: accept its terms at {url}/org/tiny and set HF_TOKEN to a token of that"),
        (403, "GatedRepo", "is gated: accept its terms"),
        (403, "", "{url} refuses org/tiny (403): check HF_TOKEN"),
        (503, "", "the cache does not have it, and org/tiny at {url} answered 503; run the same command again later"),
        (429, "", "and org/tiny at {url} was asked too often (429); wait a minute and run the same command again"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(hub: FakeHub, status: int, code: str, reason: str) -> None:
    hub.status, hub.code = status, code
    assert reason.format(url=hub.url) in refused()


def test_a_token_opens_what_is_gated(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[REPOSITORY] = dict(FILES)
    hub.token, hub.code = "hf_ours", "GatedRepo"
    assert "is gated" in refused()
    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    assert (fetch()[0] / "config.json").is_file()


@pytest.mark.parametrize("way", ["HF_HUB_OFFLINE is set", "answered 502"])
def test_offline_only_what_is_whole_in_the_cache_is_used(
    hub: FakeHub, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    hub.repositories[REPOSITORY] = dict(FILES)
    hub.repositories["org/parts"] = {"m-F16-00001-of-00002.gguf": b"1", "m-F16-00002-of-00002.gguf": b"2"}
    folder, _, _ = fetch()
    first, _, _ = fetch(RepositoryName("org/parts", "F16"))
    if way.startswith("HF"):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    else:
        hub.status = 502
    assert fetch()[0] == folder and fetch(RepositoryName("org/parts", "f16"))[0] == first
    for path, name in ((folder / "model.safetensors", NAME), (first, RepositoryName("org/parts", "F16"))):
        path.unlink()
        assert way in refused(name) and f"the cache lacks {path.name} (0.0 MB), and " in refused(name)
    assert way in refused(RepositoryName("org/other", ""))


def test_nothing_is_fetched_without_room(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories[REPOSITORY] = dict(FILES)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 10_000))
    assert refused() == f"org/tiny takes 0.0 MB, and 0.0 MB are free in {tmp_path / 'hub'}"
    assert hub.fetched == []


def test_a_hub_that_nobody_listens_at(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached (" in refused()


def test_a_page_of_another_server_is_no_hub(hub: FakeHub) -> None:
    hub.page = b"<html>Please log in</html>"
    assert f"{hub.url} does not answer as a hub: check HF_ENDPOINT, or log in to the network" in refused()


def test_an_unwritable_cache_is_one_sentence(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories[REPOSITORY] = dict(FILES)
    (tmp_path / "hub").write_text("a file where the cache should be")
    assert refused().startswith("org/tiny was not fetched whole: ")
