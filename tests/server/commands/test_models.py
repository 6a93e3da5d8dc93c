"""`hexserve pull`: any name, fetched without serving it, or only told."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from engine.bundle.manifest import load_manifest, save_manifest
from engine.bundle.stored_times import StoredThreads, StoredTimes, ThreadTimes, save, threads_file, times_file
from server.commands.cli import app
from server.settings import costs_folder
from tests.engine.sources.ai_hub.stand_ins import FILES, Answer, catalogue, store
from tests.engine.sources.conftest import hub
from tests.engine.sources.fake_hub import FakeHub
from tests.engine.sources.file_server import Store

__all__ = ["catalogue", "hub", "store"]

WANTED = "qualcomm-snapdragon-x-elite in w4a16 or w4 or float, for geniex_qairt or genie or voice_ai"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEXSERVE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def command(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["pull", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_bundle_of_the_ai_hub_is_fetched_and_unpacked(
    store: Store, catalogue: Callable[[Answer], None], cache: Path
) -> None:
    asked = []

    def answer(**request: object) -> str:
        asked.append(request)
        return store.url

    catalogue(answer)
    code, out, _ = command("hub:qwen3_4b")
    (folder,) = (cache / "fetched").glob("*/model")
    assert (code, out) == (0, f"hub:qwen3_4b is here ({folder}): hexserve run hub:qwen3_4b\n")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == FILES
    wanted = {
        "model": "qwen3_4b",
        "runtime": "geniex_qairt",
        "precision": "w4a16",
        "chipset": "qualcomm-snapdragon-x-elite",
    }
    assert asked == [{**wanted, "quiet": True}]


def test_a_plan_tells_files_and_sizes_and_fetches_nothing(hub: FakeHub, cache: Path) -> None:
    hub.repositories["org/tiny"] = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model.safetensors": bytes(3_000_000),
    }
    code, out, _ = command("org/tiny", "--dry-run")
    assert code == 0 and hub.fetched == [] and not cache.exists()
    assert [line.split() for line in out.splitlines()[:4]] == [
        ["file", "size", "here"],
        ["config.json", "0.0", "MB", "no"],
        ["tokenizer.json", "0.0", "MB", "no"],
        ["model.safetensors", "3.0", "MB", "no"],
    ]
    assert f"3.0 MB would come from {hub.url} into " in out and "; nothing was fetched" in out
    assert command("org/tiny")[0] == 0
    assert "0.0 MB would come from" in command("org/tiny", "--dry-run")[1]


def test_what_needs_no_fetching(tmp_path: Path) -> None:
    assert command("demo") == (0, "demo is here (part of hexserve): hexserve run demo\n", "")
    assert command(str(tmp_path), "--dry-run")[0] == 0
    code, _, err = command("nothing")
    assert code == 1 and err.startswith("error: nothing does not exist; name a bundle folder, ")
    assert "File name too long" in command("x" * 300, "--dry-run")[2]
    assert all(kind in err for kind in ("ORG/NAME of the hub", "ms:ORG/NAME", "hub:NAME", "https", "'demo'"))


def test_an_unknown_model_is_one_sentence(catalogue: Callable[[Answer], None]) -> None:
    def answer(**_: object) -> str:
        raise sys.modules["qai_hub_models_cli.errors"].AssetNotFoundError("No asset found\nRun this and that")

    catalogue(answer)
    code, _, err = command("hub:nothing")
    assert code == 1
    assert err == f"error: nothing has no bundle for {WANTED}: No asset found\n"


def test_offline_fails_at_once(catalogue: Callable[[Answer], None]) -> None:
    calls = []

    def answer(**_: object) -> str:
        calls.append(1)
        raise ConnectionError("Failed to resolve the store\nmore")

    catalogue(answer)
    code, _, err = command("hub:qwen3_4b")
    assert (code, len(calls)) == (1, 1)
    assert err == (
        "error: the catalogue of Qualcomm AI Hub cannot be reached (Failed to resolve the store); "
        "run the same command again with a connection\n"
    )


def test_a_package_that_is_too_old_is_one_sentence(
    catalogue: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue(lambda **_: "")
    monkeypatch.setitem(sys.modules, "qai_hub_models_cli.errors", None)  # as in 0.58
    code, _, err = command("hub:qwen3_4b")
    assert code == 1 and err.count("\n") == 1
    assert "cannot be used" in err and '-m pip install --upgrade "hexserve[hub]"' in err


def inspect(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["inspect", *arguments])


def test_whole_files_have_their_hashes(free_bundle: Path) -> None:
    result = inspect(str(free_bundle), "--check-hashes", "--graph", "free_1_of_2")
    assert result.exit_code == 0, result.output
    assert "sha256 of every file is the manifest's" in result.stdout
    assert "tensors of free_1_of_2" in result.stdout


def test_a_file_that_differs_fails(free_bundle: Path, tmp_path: Path) -> None:
    """Scripts read the exit code: a damaged bundle must not look whole."""
    damaged = tmp_path / "damaged"
    shutil.copytree(free_bundle, damaged)
    with (damaged / "part_2_of_2.data").open("r+b") as weights:
        first = weights.read(1)[0]
        weights.seek(0)
        weights.write(bytes([first ^ 1]))
    assert inspect(str(damaged)).exit_code == 0
    result = inspect(str(damaged), "--check-hashes")
    assert result.exit_code == 1
    assert result.stderr == "error: sha256 differs: part_2_of_2.data\n"


def test_what_became_of_codes_is_told(free_bundle: Path, tmp_path: Path) -> None:
    told = "weights come as gptq: 3 of 4 matrices keep their codes"
    shutil.copytree(free_bundle, copy := tmp_path / "copy")
    save_manifest(copy, msgspec.structs.replace(load_manifest(copy), codes=told))
    assert told in inspect(str(copy)).stdout and "codes" not in inspect(str(free_bundle)).stdout


def test_the_cache_is_the_setting(monkeypatch: pytest.MonkeyPatch, free_bundle: Path) -> None:
    """A variable that serve would refuse is refused here too, not passed over."""
    monkeypatch.setenv("HEXSERVE_CACHEDIR", "/x")
    result = inspect(str(free_bundle))
    assert result.exit_code == 2
    assert result.stderr == (
        "error: unknown environment variable HEXSERVE_CACHEDIR; the nearest one is HEXSERVE_CACHE_DIR\n"
    )


def test_what_was_measured_is_shown(monkeypatch: pytest.MonkeyPatch, free_bundle: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("HEXSERVE_CACHE_DIR", str(tmp_path))
    assert "ms of a step" not in inspect(str(free_bundle)).stdout
    stored = StoredTimes(((1, 64, 2.5), (8, 64, 4.0), (1, 1024, 3.0)), "Oryon [12 cores]", 12, 4, "spinning")
    save(times_file(costs_folder(tmp_path), free_bundle), stored)
    shown = inspect(str(free_bundle)).stdout
    assert "ms of a step on Oryon [12 cores], 12 cores, 4 threads, spinning" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["rows", "past", "64", "past", "1,024"] in lines
    assert ["1", "2.5", "3.0"] in lines and ["8", "4.0"] in lines
    tried = ThreadTimes(12, True, 1.25, 5.0), ThreadTimes(12, False, 1.5, 6.0)
    save(threads_file(costs_folder(tmp_path), "Oryon"), StoredThreads(tried, "Oryon [12 cores]", 12))
    shown = inspect(str(free_bundle)).stdout
    assert "ms of some layers of a first model on Oryon [12 cores], 12 cores" in shown
    assert ["12", "that", "spin", "1.2", "5.0"] in [line.split() for line in shown.splitlines()]


def test_an_embedder_says_what_it_is(tiny_checkpoint: Path, tmp_path: Path) -> None:
    options = [
        "compile",
        str(tiny_checkpoint),
        "-o",
        str(tmp_path / "embedder"),
        "--task",
        "embed",
        "--quality",
        "fast",
    ]
    made = CliRunner().invoke(app, [*options, "--parity-tokens", "16"])
    assert made.exit_code == 0 and "cosine" in made.stderr + made.stdout
    shown = inspect(str(tmp_path / "embedder")).stdout
    assert "embed, 64 dimensions by the last token" in shown
    assert shown.count("cosine 0.9") == 1
