"""`hexserve pull` against a local store and a stand-in for Qualcomm's catalogue."""

import io
import sys
import types
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import typer
from typer.testing import CliRunner

from engine.hub.catalogue import PullError, find_bundle
from engine.hub.download import DownloadProgress, download
from engine.hub.unpack import unpack
from server.commands.pull.command import pull
from tests.engine.hub.file_server import Store, serving

FILES = {"genie_config.json": b"{}", "part1_of_2.bin": bytes(range(256)) * 4000}


def archive(files: dict[str, bytes], stem: str = "") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, content in files.items():
            made.writestr(stem + name, content)
    return stream.getvalue()


@pytest.fixture
def store() -> Iterator[Store]:
    with serving(Store(archive(FILES, "qwen3_4b/"))) as made:
        made.tell_the_truth()
        yield made


Answer = Callable[..., str]


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], None]:
    """Install a package with the two modules that are used of qai_hub_models_cli."""

    class UserError(Exception):
        pass

    class AssetNotFoundError(FileNotFoundError, UserError):
        pass

    def install(answer: Answer) -> None:
        package = types.ModuleType("qai_hub_models_cli")
        package.__path__ = []
        package.__spec__ = types.SimpleNamespace(origin="fake")  # type: ignore[assignment]
        fetch, errors = types.ModuleType("qai_hub_models_cli.fetch"), types.ModuleType("qai_hub_models_cli.errors")
        fetch.get_asset_url = answer  # type: ignore[attr-defined]
        errors.CLIUserError, errors.AssetNotFoundError = UserError, AssetNotFoundError  # type: ignore[attr-defined]
        for module in (package, fetch, errors):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


def command(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(pull)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def silent() -> DownloadProgress:
    return DownloadProgress(lambda total, done: None, lambda amount: None)


def test_a_bundle_is_fetched_and_unpacked(
    store: Store, catalogue: Callable[[Answer], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def answer(**request: object) -> str:
        asked.append(request)
        return store.url

    catalogue(answer)
    monkeypatch.chdir(tmp_path)
    code, out, _ = command("qwen3_4b")
    folder = tmp_path / "qwen3_4b-genie-w4a16-qualcomm_snapdragon_x_elite"
    assert code == 0
    assert f"hexserve serve {folder.name}" in out
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    wanted = {"model": "qwen3_4b", "runtime": "genie", "precision": "w4a16", "chipset": "qualcomm-snapdragon-x-elite"}
    assert asked == [{**wanted, "quiet": True}]


def test_the_second_precision_is_tried(store: Store, catalogue: Callable[[Answer], None]) -> None:
    def answer(precision: str, **_: object) -> str:
        if precision == "w4a16":
            raise sys.modules["qai_hub_models_cli.errors"].AssetNotFoundError("none")
        return store.url

    catalogue(answer)
    assert find_bundle("llama_v3_2_1b") == store.url


def test_an_unknown_model_is_one_sentence(catalogue: Callable[[Answer], None]) -> None:
    def answer(**_: object) -> str:
        raise sys.modules["qai_hub_models_cli.errors"].AssetNotFoundError("No asset found\nRun this and that")

    catalogue(answer)
    code, _, err = command("nothing")
    assert code == 1
    assert err == ("error: nothing has no bundle for qualcomm-snapdragon-x-elite in w4a16 or w4: No asset found\n")


def test_offline_fails_at_once(catalogue: Callable[[Answer], None]) -> None:
    calls = []

    def answer(**_: object) -> str:
        calls.append(1)
        raise ConnectionError("Failed to resolve the store\nmore")

    catalogue(answer)
    code, _, err = command("qwen3_4b")
    assert (code, len(calls)) == (1, 1)
    assert err == "error: the catalogue of Qualcomm AI Hub cannot be reached: Failed to resolve the store\n"


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.hub.catalogue.PACKAGE", "not_installed_anywhere")
    with pytest.raises(PullError, match=r"pip install 'hexserve\[hub\]'"):
        find_bundle("qwen3_4b")


def test_a_package_that_is_too_old_is_one_sentence(
    catalogue: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue(lambda **_: "")
    monkeypatch.setitem(sys.modules, "qai_hub_models_cli.errors", None)  # as in 0.58
    code, _, err = command("qwen3_4b")
    assert code == 1 and err.count("\n") == 1
    assert "cannot be used" in err and "pip install --upgrade 'hexserve[hub]'" in err


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


def test_an_entry_outside_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(archive({"../evil.txt": b"x"}))
    with pytest.raises(PullError, match="outside its folder"):
        unpack(tmp_path / "a.zip", tmp_path / "b", lambda amount: None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip"]


def test_a_folder_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(archive(FILES))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "precious").touch()
    with pytest.raises(PullError, match=r"cannot be unpacked into .*: File exists"):
        unpack(tmp_path / "a.zip", tmp_path / "b", lambda amount: None)
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["precious"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.zip", "b"]


def test_a_damaged_archive_is_removed(tmp_path: Path) -> None:
    content = bytearray(archive(FILES))
    content[5000] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(PullError, match="is damaged"):
        unpack(tmp_path / "a.zip", tmp_path / "b", lambda amount: None)
    assert list(tmp_path.iterdir()) == []
