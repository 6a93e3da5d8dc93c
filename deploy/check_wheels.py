"""Writes locks/wheels.txt: for each package that serve, compile and the NPU lock, its wheels for the ARM64 laptops.

`python deploy/check_wheels.py` asks pip (`pip install --dry-run --only-binary=:all: --platform ...`) with the locks'
own hashes and needs the network; a test compares the list with the locks and needs none. `make lock` runs it.
A pip older than LEAST_PIP downloads every wheel in a dry run, so a newer one is then fetched into a temporary folder.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import Version

FOLDER = Path(__file__).resolve().parent / "locks"
LIST = FOLDER / "wheels.txt"
LOCKS = ("compile", "qnn")
PYTHONS = ("3.12", "3.13")
LEAST_PIP = "24.1"
BUILDERS = {"setuptools"}  # locked for `make` alone: the installers take the package's own


@dataclass(frozen=True)
class Machine:
    """A system as pip names it, and what environment markers such as `sys_platform` are there."""

    name: str
    platforms: tuple[str, ...]
    markers: dict[str, str]

    def environment(self, python: str) -> dict[str, str]:
        """What a marker is evaluated against; pip evaluates them for this machine instead."""
        here = {key: str(value) for key, value in default_environment().items()}
        return {**here, **self.markers, "python_version": python, "python_full_version": f"{python}.0", "extra": ""}


MACHINES = (
    Machine(
        "Windows ARM64",
        ("win_arm64",),
        {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt", "platform_machine": "ARM64"},
    ),
    Machine(
        "Linux ARM64",
        ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 36))),
        {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "aarch64"},
    ),
)


@dataclass(frozen=True)
class Pin:
    """A package of a lock at its version, with the SHA-256 of every file that its release has."""

    requirement: Requirement
    hashes: frozenset[str]

    def line(self) -> str:
        """For a requirements file, without the marker."""
        hashes = " ".join(f"--hash=sha256:{each}" for each in sorted(self.hashes))
        return f"{self.requirement.name}{self.requirement.specifier} {hashes}"


def pins(machine: Machine, python: str) -> Iterator[Pin]:
    """What the locks install there, each package once."""
    seen = set(BUILDERS)
    for lock in LOCKS:
        text = (FOLDER / f"{lock}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            stated, *hashes = line.split("--hash=sha256:")
            wanted = Requirement(stated.strip())
            is_there = wanted.marker is None or wanted.marker.evaluate(machine.environment(python))
            if is_there and wanted.name not in seen:
                seen.add(wanted.name)
                yield Pin(wanted, frozenset(each.strip() for each in hashes))


def pip_command(folder: Path) -> list[str]:
    """How to call a pip that is new enough: this Python's own, or one fetched into the folder. CalledProcessError."""
    own = [sys.executable, "-m", "pip"]
    if Version(metadata.version("pip")) >= Version(LEAST_PIP):
        return own
    subprocess.run([*own, "install", "--quiet", "--target", str(folder), f"pip>={LEAST_PIP}"], check=True)
    return [sys.executable, str(folder / "pip")]


def wheels(pip: list[str], machine: Machine, python: str, wanted: Iterable[Pin]) -> list[tuple[str, str]]:
    """File and SHA-256 of each wheel that pip would install there. CalledProcessError when one is missing."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requirements.txt").write_text("\n".join(pin.line() for pin in wanted), encoding="utf-8")
        command = [*pip, "install", "--dry-run", "--ignore-installed", "--quiet", "--no-deps", "--require-hashes"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", python]
        command += ["--implementation", "cp", "--target", str(folder / "target"), "--report", str(folder / "report")]
        command += ["--requirement", str(folder / "requirements.txt")]
        for platform in machine.platforms:
            command += ["--platform", platform]
        subprocess.run(command, check=True)
        found = [item["download_info"] for item in json.loads((folder / "report").read_text("utf-8"))["install"]]
    return [(item["url"].rsplit("/", 1)[1], item["archive_info"]["hashes"]["sha256"]) for item in found]


def main() -> int:
    """Write the list; 1 when a wheel is missing, which pip then names."""
    listed: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder:
        pip = pip_command(Path(folder))
        for machine in MACHINES:
            for python in PYTHONS:
                try:
                    found = wheels(pip, machine, python, pins(machine, python))
                except subprocess.CalledProcessError:
                    print(f"FAIL {machine.name}, Python {python}: pip has said why", file=sys.stderr)
                    return 1
                listed |= set(found)
                print(f"ok   {machine.name}, Python {python}: {len(found)} wheels", flush=True)
    LIST.write_text("".join(f"{file} {sha256}\n" for file, sha256 in sorted(listed)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
