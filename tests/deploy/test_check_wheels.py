"""Every locked package has a wheel for the ARM64 laptops: the stored list against the locks, without a network."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

DEPLOY = Path(__file__).parent.parent.parent / "deploy"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DEPLOY / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


wheels = load("check_wheels")


def tags(machine: object, python: str) -> frozenset[Tag]:
    """What an installer takes there."""
    version = tuple(int(part) for part in python.split("."))
    platforms = list(machine.platforms)  # type: ignore[attr-defined]
    newer = [*cpython_tags(version, platforms=platforms), *compatible_tags(version, platforms=platforms)]
    return frozenset(newer)


@pytest.mark.parametrize("python", wheels.PYTHONS)
@pytest.mark.parametrize("machine", wheels.MACHINES, ids=lambda machine: machine.name)
def test_every_locked_package_has_a_wheel_there(machine: object, python: str) -> None:
    """Its hash stands in the lock, so it is a file of that release: the list cannot be of another one."""
    listed = [line.split() for line in wheels.LIST.read_text(encoding="utf-8").splitlines()]
    accepted, lacking = tags(machine, python), []
    wanted = list(wheels.pins(machine, python))
    assert len(wanted) > 40
    for pin in wanted:
        (version,) = (each.version for each in pin.requirement.specifier)
        fitting = [
            sha256
            for file, sha256 in listed
            for name, release, _, its_tags in [parse_wheel_filename(file)]
            if (name, str(release)) == (canonicalize_name(pin.requirement.name), version) and its_tags & accepted
        ]
        if not set(fitting) & pin.hashes:
            lacking.append(str(pin.requirement))
    assert lacking == []


def test_the_npu_s_provider_is_among_them() -> None:
    (windows, linux) = wheels.MACHINES
    for machine in (windows, linux):
        assert {"onnxruntime-qnn", "huggingface-hub", "fastapi"} <= {
            pin.requirement.name for pin in wheels.pins(machine, "3.12")
        }


def test_a_missing_wheel_ends_with_1_and_leaves_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(1, command)

    before = wheels.LIST.read_bytes()
    monkeypatch.setattr(wheels, "pip_command", lambda folder: ["pip"])
    monkeypatch.setattr(wheels.subprocess, "run", run)
    assert wheels.main() == 1 and wheels.LIST.read_bytes() == before
    assert capsys.readouterr().err == "FAIL Windows ARM64, Python 3.12: pip has said why\n"


@pytest.mark.parametrize(("version", "is_enough"), [("23.2.1", False), ("24.0", False), ("24.1", True), ("26.0", True)])
def test_an_old_pip_is_not_asked(
    version: str, is_enough: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its dry run downloads every wheel, gigabytes over all machines; a newer one is fetched into a folder instead."""
    ran: list[list[str]] = []
    monkeypatch.setattr(wheels.metadata, "version", lambda name: version)
    monkeypatch.setattr(wheels.subprocess, "run", lambda command, **_: ran.append(command))
    command = wheels.pip_command(tmp_path)
    if is_enough:
        assert command == [sys.executable, "-m", "pip"] and ran == []
    else:
        assert command == [sys.executable, str(tmp_path / "pip")]
        assert [line[-2:] for line in ran] == [[str(tmp_path), "pip>=24.1"]]
