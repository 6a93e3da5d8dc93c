"""`hexserve pull` against a local store and a stand-in for Qualcomm's catalogue."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from server.commands.pull.command import pull
from tests.engine.hub.file_server import Store
from tests.engine.hub.stand_ins import FILES, Answer


def command(*arguments: str) -> tuple[int, str, str]:
    app = typer.Typer()
    app.command()(pull)
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


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


def test_a_package_that_is_too_old_is_one_sentence(
    catalogue: Callable[[Answer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalogue(lambda **_: "")
    monkeypatch.setitem(sys.modules, "qai_hub_models_cli.errors", None)  # as in 0.58
    code, _, err = command("qwen3_4b")
    assert code == 1 and err.count("\n") == 1
    assert "cannot be used" in err and "pip install --upgrade 'hexserve[hub]'" in err
