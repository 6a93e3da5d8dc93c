"""ModelScope, addresses and AI Hub: fetched onto our own shelf, from servers made here that do everything wrong."""

import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from engine.errors import BundleError
from engine.sources import download
from engine.sources.fetched import FetchedModels
from engine.sources.names import FetchFailed, read_name
from engine.sources.resolve import locate
from tests.engine.sources.ai_hub.stand_ins import FILES as BUNDLE
from tests.engine.sources.ai_hub.stand_ins import Answer, archive, catalogue
from tests.engine.sources.fake_hub import FakeHub
from tests.engine.sources.file_server import Store, serving

__all__ = ["catalogue"]
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{ }",
    "model.safetensors": bytes(range(256)) * 40,
    "pytorch_model.bin": b"pickle",
}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def site(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """A ModelScope that has one repository."""
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    monkeypatch.delenv("MODELSCOPE_API_TOKEN", raising=False)
    hub.repositories["org/tiny"] = dict(FILES)
    return hub


def refused(name: str, cache: Path) -> str:
    with pytest.raises(FetchFailed) as caught:
        locate(name, cache)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_only_what_is_needed_comes_once(site: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.is_redirecting = True
    found = locate("ms:org/tiny", tmp_path)
    assert found.name == "tiny"
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == {
        name: FILES[name] for name in ("config.json", "tokenizer.json", "model.safetensors")
    }
    assert capsys.readouterr().err == f"ms:org/tiny: 3 files, 0.0 MB, from {site.url}\n"
    site.status = 500  # whole, it needs no server
    assert locate("ms:org/tiny", tmp_path) == found
    models = FetchedModels(tmp_path)
    assert [model.name for model in models.fetched()] == ["ms:org/tiny"]
    assert models.remove("ms:org/tiny") == 10245
    assert models.fetched() == [] and not found.path.exists()


def test_a_gguf_model_by_its_quant(site: FakeHub, tmp_path: Path) -> None:
    site.repositories["org/files"] = {"a-Q8_0.gguf": b"GGUF8", "sub/a-Q4_0.gguf": b"GGUF4"}
    found = locate("ms:org/files:q4_0", tmp_path)
    assert (found.path.name, found.path.read_bytes(), found.name) == ("a-Q4_0.gguf", b"GGUF4", "")
    assert refused("ms:org/files", tmp_path).startswith(
        "ms:org/files has 2 GGUF models: name one as ms:org/files:QUANT"
    )


def test_a_token_opens_what_is_private_and_is_not_shown_to_the_store(
    site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.token, site.is_redirecting = "ours", True
    assert "(the server answered 401); set MODELSCOPE_API_TOKEN" in refused("ms:org/tiny", tmp_path)
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "ours")
    assert locate("ms:org/tiny", tmp_path).path.is_dir()


def test_half_a_model_is_never_used_and_the_next_command_goes_on(
    site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.cut_after = [9, 9, 1000, 0]
    said = refused("ms:org/tiny", tmp_path)
    assert said.startswith("model.safetensors was not fetched whole (")
    assert said.endswith("; the same command goes on with it")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert refused("ms:org/tiny", tmp_path) == (
        "ms:org/tiny is not here whole (model.safetensors missing), and HF_HUB_OFFLINE is set: run the same command "
        "without it once"
    )
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert [(model.name, model.is_whole) for model in FetchedModels(tmp_path).fetched()] == [("ms:org/tiny", False)]
    site.fetched.clear()
    assert (locate("ms:org/tiny", tmp_path).path / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    assert site.fetched == [("model.safetensors", "bytes=1000-")]


def test_a_server_that_falls_silent_is_asked_again(
    site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.sources.download.TIMEOUT", httpx.Timeout(0.2))
    site.repositories["org/tiny"] = {"m-Q8_0.gguf": FILES["model.safetensors"]}
    site.stall_after = [4000]
    assert locate("ms:org/tiny", tmp_path).path.read_bytes() == FILES["model.safetensors"]
    assert site.fetched == [("m-Q8_0.gguf", None), ("m-Q8_0.gguf", "bytes=4000-")]


def test_another_hash_is_refused_and_removed(site: FakeHub, tmp_path: Path) -> None:
    site.wrong = {"model.safetensors"}
    assert refused("ms:org/tiny", tmp_path) == (
        "model.safetensors came with another checksum than its server says; it was removed, try again"
    )
    assert list(tmp_path.rglob("model.safetensors*")) == []
    site.wrong = set()
    assert locate("ms:org/tiny", tmp_path).path.is_dir()


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (404, "{url} shows no model org/tiny: check it, or set MODELSCOPE_API_TOKEN if it is private"),
        (403, "ms:org/tiny at {url} is not open to everybody (the server answered 403); set MODELSCOPE_API_TOKEN"),
        (
            429,
            "ms:org/tiny is not here, and ms:org/tiny at {url} was asked too often (429); wait a minute and run",
        ),
        (503, "ms:org/tiny is not here, and ms:org/tiny at {url} answered 503; run the same command again later"),
    ],
)
def test_what_the_server_refuses_is_one_sentence(site: FakeHub, tmp_path: Path, status: int, reason: str) -> None:
    site.status = status
    assert reason.format(url=site.url) in refused("ms:org/tiny", tmp_path)


@pytest.mark.parametrize(("status", "reason"), [(429, "asked too often (429)"), (503, "answered 503; run the same")])
def test_a_file_that_is_refused_half_way_is_not_there(site: FakeHub, tmp_path: Path, status: int, reason: str) -> None:
    site.file_status = [status]
    assert reason in refused("ms:org/tiny", tmp_path)
    assert locate("ms:org/tiny", tmp_path).path.is_dir()


def test_another_server_is_no_modelscope(site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site.page = b"<html>Please log in</html>"
    assert f"{site.url} does not answer as ModelScope does" in refused("ms:org/tiny", tmp_path)
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9 cannot be reached (" in refused("ms:org/tiny", tmp_path)


def test_nothing_is_fetched_without_room(site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**9, 10**9, 10_000))
    assert (
        refused("ms:org/tiny", tmp_path) == f"ms:org/tiny takes 0.0 MB, and 0.0 MB are free in {tmp_path / 'fetched'}"
    )
    assert site.fetched == []


def test_a_disk_that_is_full_half_way_is_one_sentence(
    site: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> httpx.Headers:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(download, "_fetch", full)
        assert refused("ms:org/tiny", tmp_path).endswith("config.json.part cannot be written: No space left on device")
    assert locate("ms:org/tiny", tmp_path).path.is_dir()


def test_a_file_at_an_address_with_its_parts(site: FakeHub, tmp_path: Path) -> None:
    site.repositories["org/tiny"] = {f"m-0000{number}-of-00002.gguf": b"GGUF%d" % number for number in (1, 2)}
    found = locate(f"{site.url}/org/tiny/resolve/v1/m-00002-of-00002.gguf", tmp_path)
    assert [path.read_bytes() for path in sorted(found.path.parent.iterdir())] == [b"GGUF1", b"GGUF2"]
    assert found.path.name == "m-00001-of-00002.gguf"
    page = f"{site.url}/org/tiny"
    assert refused(page, tmp_path) == f"{page} is neither a .gguf file nor a .zip of a folder; name one, or ORG/NAME"
    assert "is not here, and 127.0.0.1:9 cannot be reached (" in refused("http://127.0.0.1:9/m.gguf", tmp_path)
    with pytest.raises(BundleError, match="must not be empty"):
        locate("", tmp_path)
    assert refused("http://[::1/m.gguf", tmp_path).startswith("http://[::1/m.gguf is no address: ")


def test_an_archive_at_an_address_is_unpacked_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    store.content = archive({"../evil": b""})
    store.etag = store.sha256 = ""
    assert "has an entry outside its folder" in refused(store.url, tmp_path)
    store.content = archive(BUNDLE, "inner/")
    found = locate(store.url, tmp_path)
    assert {path.name: path.read_bytes() for path in found.path.iterdir()} == BUNDLE
    assert found.name == "qwen3_4b-genie-w4a16-qualcomm_snapdragon_x_elite"
    assert [path.name for path in found.path.parent.iterdir()] == ["model"]


def test_a_bundle_of_the_ai_hub(store: Store, catalogue: Callable[[Answer], None], tmp_path: Path) -> None:
    catalogue(lambda **_: store.url)
    found = locate("hub:qwen3_4b", tmp_path)
    assert found.name == "qwen3_4b" and {path.name for path in found.path.iterdir()} == set(BUNDLE)
    assert [model.name for model in FetchedModels(tmp_path).fetched()] == ["hub:qwen3_4b"]


def test_a_plan_fetches_nothing(site: FakeHub, tmp_path: Path) -> None:
    models = FetchedModels(tmp_path)
    for text in ("org/tiny", "ms:org/tiny"):
        plan = models.plan(read_name(text, {}))  # type: ignore[arg-type]
        assert {file.name for file in plan.missing} == {"config.json", "tokenizer.json", "model.safetensors"}
        assert (plan.size, plan.origin) == (10245, site.url)
    assert site.fetched == [] and models.fetched() == []
    locate("ms:org/tiny", tmp_path)
    assert models.plan(read_name("ms:org/tiny", {})).missing == ()  # type: ignore[arg-type]
    assert [file.size for file in models.plan(read_name("smollm2", models.entries)).missing] == [92871040]  # type: ignore[arg-type]


@pytest.mark.parametrize("parent", ["..%2F..%2F", "..%5C..%5C", "c%3A"])
def test_an_address_names_no_file_outside_of_the_shelf(parent: str, tmp_path: Path) -> None:
    with serving(Store(b"GGUF")) as store:
        found = locate(store.url.rpartition("/")[0] + f"/{parent}m.gguf", tmp_path)
    assert found.path.name == "m.gguf" and found.path.parents[1] == tmp_path / "fetched"
