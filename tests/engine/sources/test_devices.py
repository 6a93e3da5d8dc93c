"""What the setting `devices` stands for."""

import importlib.util
import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import NpuSpec, load_manifest
from engine.errors import BundleError
from engine.sources import devices
from engine.sources.devices import bundles_for, devices_of
from engine.sources.resolve import Wanted
from engine.sources.retention import LaterCompilations
from tests.bundles import Bundles


def resolved() -> Path:
    return Path("resolved")


@pytest.mark.parametrize(
    ("setting", "chat", "embed"),
    [
        ("", "", ""),
        ("npu,cpu", "npu,cpu", "npu,cpu"),
        ("chat=npu,embed=cpu", "npu", "cpu"),
        ("chat=npu,cpu,embed=cpu", "npu,cpu", "cpu"),
        ("chat=auto", "auto", ""),
        ("chat = npu, cpu, embed = cpu", " npu,cpu", " cpu"),
    ],
)
def test_what_is_said_of_a_model(setting: str, chat: str, embed: str) -> None:
    names = ["chat", "embed"]
    assert [devices_of(setting, name, names) for name in names] == [chat, embed]


def test_a_device_without_a_model_is_named() -> None:
    with pytest.raises(BundleError, match="'npu' stands before the first NAME="):
        devices_of("npu,chat=cpu", "chat")


def test_a_model_that_is_not_there_is_named() -> None:
    assert devices_of("chat=npu,embed=cpu", "chat", ["chat", "embed"]) == "npu"
    with pytest.raises(BundleError, match="devices: no model is called other"):
        devices_of("chat=npu,other=cpu", "chat", ["chat", "embed"])


def test_a_word_that_is_no_device_is_told_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="devices is npu, cpu, npu,cpu, auto or another bundle: gpu does not exist"):
        bundles_for("gpu", "demo", tmp_path, resolved, LaterCompilations())


@pytest.mark.parametrize("devices", ["", "cpu", " CPU "])
def test_one_device_as_the_bundle_is(devices: str, tmp_path: Path) -> None:
    assert bundles_for(devices, "demo", tmp_path, resolved, LaterCompilations()) == (resolved(), None)


def test_another_bundle_is_named(bundles: Bundles, tmp_path: Path) -> None:
    assert bundles_for(str(bundles("free")), "demo", tmp_path, resolved, LaterCompilations()) == (
        resolved(),
        bundles("free"),
    )


def test_auto_is_one_device_where_there_is_no_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_npu", lambda: False)
    assert bundles_for("auto", "demo", tmp_path, resolved, LaterCompilations()) == (resolved(), None)


@pytest.fixture
def npu_bundle(bundles: Bundles, tmp_path: Path) -> Path:
    manifest = load_manifest(bundles("free"))
    (folder := tmp_path / "for-npu").mkdir()
    (folder / "manifest.json").write_bytes(
        msgspec.json.encode(msgspec.structs.replace(manifest, files={}, npu=NpuSpec(60, 73, {})))
    )
    return folder


@pytest.mark.parametrize("setting", ["npu", "NPU", "auto"])
def test_a_bundle_for_the_npu_is_served_there(
    setting: str, npu_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_npu", lambda: True)
    assert bundles_for(setting, str(npu_bundle), tmp_path, resolved, LaterCompilations(), ["draft"]) == (
        resolved(),
        None,
    )


def test_a_folder_that_becomes_a_bundle_for_the_npu_is_served_there(tmp_path: Path) -> None:
    (folder := tmp_path / "genie").mkdir()
    (folder / "genie_config.json").write_text("{}")
    assert bundles_for("npu", str(folder), tmp_path, resolved, LaterCompilations()) == (resolved(), None)


def test_a_bundle_for_the_npu_is_refused_where_the_cpu_is_asked_for(npu_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=f"devices is cpu, and {re.escape(str(npu_bundle))} is made for the NPU"):
        bundles_for("CPU", str(npu_bundle), tmp_path, resolved, LaterCompilations())


@pytest.mark.parametrize("setting", ["auto", "npu,cpu", "other"])
def test_two_devices_are_refused_where_one_is_needed(
    setting: str, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_npu", lambda: True)
    setting = str(bundles("free")) if setting == "other" else setting
    with pytest.raises(
        BundleError, match=f"devices is {re.escape(setting)}: lora and kv_file can be used on one device only"
    ):
        bundles_for(setting, "demo", tmp_path, resolved, LaterCompilations(), ["lora", "kv_file"])


@pytest.mark.parametrize("setting", ["", "cpu", "auto"])
def test_what_needs_one_device_gets_it(setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "has_npu", lambda: False)
    assert bundles_for(setting, "demo", tmp_path, resolved, LaterCompilations(), ["lora"]) == (resolved(), None)


@pytest.mark.parametrize("setting", ["npu,cpu", "NPU, CPU", "cpu,npu", "npu"])
def test_what_an_npu_needs_is_compiled_of_the_checkpoint(
    setting: str, bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Wanted] = []
    monkeypatch.setattr(devices, "has_npu", lambda: True)

    def compiled(wanted: Wanted) -> Path:
        asked.append(wanted)
        return tmp_path

    monkeypatch.setattr(devices, "compiled", compiled)
    found = bundles_for(setting, str(bundles.source), tmp_path, resolved, LaterCompilations())
    assert found == ((tmp_path, None) if setting == "npu" else (resolved(), tmp_path))
    (wanted,) = asked
    assert wanted.folder == bundles.source and wanted.quant == "w4a16"
    assert dict(wanted.more)["target"] == "x-elite" and dict(wanted.more)["share_weights"] is True
    assert json.loads(wanted.command()[-1])["quality"] is None  # the compiler's default: codes are chosen
    with pytest.raises(BundleError, match="is no checkpoint that could be compiled for the NPU"):
        bundles_for(setting, str(bundles("segments")), tmp_path, resolved, LaterCompilations())


def test_blocks_of_a_file_are_kept_for_the_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Wanted] = []

    def compiled(wanted: Wanted) -> Path:
        asked.append(wanted)
        return tmp_path

    monkeypatch.setattr(devices, "compiled", compiled)
    (file := tmp_path / "model.GGUF").write_bytes(b"GGUF")
    bundles_for("npu", str(file), tmp_path, resolved, LaterCompilations())
    bundles_for("npu", str(file), tmp_path, resolved, LaterCompilations(), ["lora"])  # the compiler's to refuse, first
    assert [(wanted.folder, wanted.quant, wanted.lora) for wanted in asked] == [(file, "w4", False), (file, "w4", True)]


def test_with_auto_the_cpu_serves_until_the_other_bundle_is_there(
    bundles: Bundles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "has_npu", lambda: True)
    made = [sys.executable, "-c", "print('chosen')"]
    monkeypatch.setattr(Wanted, "command", lambda wanted: made)
    with LaterCompilations() as later:
        assert bundles_for("auto", str(bundles.source), tmp_path, resolved, later) == (resolved(), None)
        assert later.wait() == [0]
    (log,) = tmp_path.glob("*-w4a16-*.log")
    assert log.read_text().split() == ["chosen"]
    told = f"the CPU serves; a bundle for the NPU is compiled behind it (see {log}), and the next start serves it"
    assert told in capsys.readouterr().err
    monkeypatch.setattr(devices, "is_good", lambda folder: True)
    monkeypatch.setattr(devices, "compiled", lambda wanted: wanted.target)
    first, second = bundles_for("auto", str(bundles.source), tmp_path, resolved, later)
    assert first == resolved() and second is not None and second.with_name(f"{second.name}.log") == log


def test_without_its_package_there_is_no_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BundleError, match=r"devices: the NPU for demo needs: .*hexserve\[qnn\]"):
        bundles_for("npu,cpu", "demo", tmp_path, resolved, LaterCompilations())
