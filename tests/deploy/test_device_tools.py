"""The laptop's scripts: what they ask for, and what they say when things go wrong."""

import importlib.util
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DEPLOY / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_requirements_are_those_of_the_package_with_the_npu() -> None:
    wheels = load("check_wheels")
    for machine in wheels.MACHINES:
        wanted = " ".join(wheels.requirements(wheels.PROJECT, machine))
        assert "onnxruntime-qnn>=2.7" in wanted and "fastapi>=" in wanted and "torch" not in wanted
    assert set(wheels.PYTHONS) == {"3.11", "3.12", "3.13"}


def test_a_missing_wheel_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wheels = load("check_wheels")

    def pip(machine: object, python: str, wanted: list[str], *more: str) -> list[str] | None:
        if (machine.name, python) == ("Linux ARM64", "3.11") and (not more or "pyyaml" in wanted):  # type: ignore[attr-defined]
            return None
        return ["numpy-2.4-cp311-cp311-win_arm64.whl", "pyyaml-6-cp312-cp312-win_arm64.whl", "rich-14-py3-none-any.whl"]

    monkeypatch.setattr(wheels, "pip", pip)
    assert wheels.main() == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAIL Linux ARM64, Python 3.11: no wheel of pyyaml" in lines
    assert "ok   Linux ARM64, Python 3.12: 3 wheels; native: numpy-2.4, pyyaml-6" in lines


def test_the_one_package_that_is_built_there_is_named_and_nothing_else_may_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip sees an empty wheel in its place, so everything else must still resolve to wheels."""
    wheels = load("check_wheels")
    assert wheels.SOURCES == {("Windows ARM64", "3.11"): {"pyyaml": "6.0.3"}}
    seen: list[str] = []

    def pip(machine: object, python: str, wanted: list[str], *more: str) -> list[str] | None:
        local = [
            path.name
            for option, folder in pairwise(more)
            if option == "--find-links"
            for path in Path(folder).iterdir()
        ]
        seen.extend(local)
        return ["numpy-2.4-cp311-cp311-win_arm64.whl", *local]

    monkeypatch.setattr(wheels, "pip", pip)
    assert wheels.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert seen == ["pyyaml-6.0.3-py3-none-any.whl"]
    assert [line for line in lines if "built" in line] == [
        "ok   Windows ARM64, Python 3.11: 1 wheels; native: numpy-2.4; built there, without a compiler: pyyaml-6.0.3"
    ]


def test_pip_takes_the_stand_in(tmp_path: Path) -> None:
    wheels = load("check_wheels")
    (machine,) = (machine for machine in wheels.MACHINES if machine.name == "Windows ARM64")
    options = [*wheels.stand_ins({"nothing": "1.0"}, tmp_path), "--no-index"]
    assert wheels.pip(machine, "3.11", ["nothing"], *options) == ["nothing-1.0-py3-none-any.whl"]


def test_the_smoke_script_tells_a_bundle_that_is_none(tmp_path: Path) -> None:
    report = tmp_path / "smoke.json"
    done = subprocess.run(
        [sys.executable, str(DEPLOY / "device_smoke.py"), str(tmp_path), "--report", str(report)],
        capture_output=True,
        text=True,
        check=False,
        cwd=DEPLOY.parent,
    )
    assert done.returncode == 1
    assert "FAIL  load" in done.stdout and "is neither a bundle" in done.stdout
    assert '"pass": false' in report.read_text()


def test_the_report_tells_a_bundle_that_is_none(tmp_path: Path) -> None:
    """What it prints of a real one: tests/genie/test_oracle.py."""
    command = [sys.executable, str(DEPLOY / "genie_report.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.strip() == f"error: {tmp_path} is not a bundle: it has no manifest.json"


@pytest.mark.parametrize(("version", "is_enough"), [("23.2.1", False), ("24.0", False), ("24.1", True), ("26.0", True)])
def test_an_old_pip_is_not_asked(
    version: str, is_enough: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its dry run downloads every wheel, gigabytes over all machines; a newer one is fetched into a folder instead."""
    wheels = load("check_wheels")
    ran: list[list[str]] = []
    monkeypatch.setattr(wheels.metadata, "version", lambda name: version)
    monkeypatch.setattr(wheels.tempfile, "mkdtemp", lambda **_: str(tmp_path))
    monkeypatch.setattr(wheels.subprocess, "run", lambda command, **_: ran.append(command))
    command = wheels.pip_command()
    if is_enough:
        assert command == (sys.executable, "-m", "pip")
        assert ran == []
    else:
        assert command == (sys.executable, str(tmp_path / "pip"))
        assert [line[-2:] for line in ran] == [[str(tmp_path), "pip>=24.1"]]
