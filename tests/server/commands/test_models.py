"""`hexserve pull`: any name, fetched without serving it, or only told."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.commands.cli import app
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
