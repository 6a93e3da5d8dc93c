"""A bundle's way into memory: found once, estimated in another process, opened as often as wanted."""

import json
import sys
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import BundleError
from engine.worker.estimate import estimate
from server.models import loader
from server.models.loader import BundleLoader
from tests.bundles import Bundles
from tests.server.scripted_engine import ScriptedEngine


def test_a_source_is_found_once_and_the_engine_gets_the_folder(bundles: Bundles) -> None:
    folder, found, opened = bundles("free"), [], []

    def find() -> EngineConfig:
        found.append(folder)
        return EngineConfig(str(folder))

    def open_engine(config: EngineConfig) -> ScriptedEngine:
        opened.append(config.bundle)
        return ScriptedEngine()

    made = BundleLoader(EngineConfig("a checkpoint"), find, open_engine)
    assert made.manifest is None and not found and not made.prefixes
    size = made.estimate()
    assert size == estimate(EngineConfig(str(folder)))
    assert made.manifest is not None and made.manifest.name
    assert made.estimate() == size
    assert made.prefixes == 1024**3  # of kv_offload_mb
    made.open()
    made.open()
    assert (found, opened) == ([folder], [str(folder)] * 2)


def test_a_bundle_that_was_compiled_anew_is_estimated_anew(bundles: Bundles, tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    place.symlink_to(bundles("free"))
    made = BundleLoader(EngineConfig(str(place)), None, lambda _: ScriptedEngine())
    first = made.estimate()
    place.unlink()
    place.symlink_to(bundles("free int8"))
    assert made.estimate() == estimate(EngineConfig(str(bundles("free int8")))) != first


def test_what_is_wrong_with_a_bundle_is_said(bundles: Bundles, tmp_path: Path) -> None:
    missing = BundleLoader(EngineConfig(str(tmp_path)), None, lambda _: ScriptedEngine())
    with pytest.raises(BundleError, match=r"manifest\.json"):
        missing.estimate()
    unservable = BundleLoader(EngineConfig(str(bundles("fixed")), kv_slots=9), None, lambda _: ScriptedEngine())
    with pytest.raises(BundleError, match="kv_slots cannot be set"):
        unservable.estimate()


@pytest.mark.parametrize("output", ["", "no JSON", json.dumps({"bytes": None})])
def test_a_estimating_that_breaks_is_a_failure_of_that_model(
    bundles: Bundles, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    command = [sys.executable, "-c", f"print({output!r}, end='')"]
    monkeypatch.setattr(loader, "module_command", lambda *_: command)
    made = BundleLoader(EngineConfig(str(bundles("free"))), None, lambda _: ScriptedEngine())
    with pytest.raises(BundleError, match="its memory cannot be estimated"):
        made.estimate()
