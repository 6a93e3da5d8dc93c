"""Does everything `pip install 'hexserve[qnn]'` needs exist as a binary wheel for the laptops?

Asks pip itself (`pip install --dry-run --only-binary=:all: --platform ...`) for every system and Python version in the
tables below. Needs the network; downloads metadata and, where an index has none, the wheels into pip's cache.
"""

import json
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PYTHONS = ("3.11", "3.12", "3.13")
EXTRAS = ("qnn",)


@dataclass(frozen=True)
class Machine:
    """A system as pip names it. Older manylinux tags also run on it, so all of them are accepted.

    markers: what environment markers such as `sys_platform` are there; pip evaluates them for this machine instead,
    so requirements are filtered before pip sees them.
    """

    name: str
    platforms: tuple[str, ...]
    markers: dict[str, str]


MACHINES = (
    Machine("Windows ARM64", ("win_arm64",), {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"}),
    Machine(
        "Linux ARM64",
        tuple(f"manylinux_2_{minor}_aarch64" for minor in range(17, 36)) + ("manylinux2014_aarch64",),
        {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    ),
)


def requirements(project: Path, machine: Machine) -> list[str]:
    """Dependencies of the package with its extras, without those that are not for this machine."""
    from packaging.requirements import Requirement

    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lines = [*table["dependencies"], *(line for extra in EXTRAS for line in table["optional-dependencies"][extra])]
    parsed = [Requirement(line) for line in lines]
    wanted = [item for item in parsed if item.marker is None or item.marker.evaluate({**machine.markers, "extra": ""})]
    return [f"{item.name}{item.specifier}" for item in wanted]


def resolve(machine: Machine, python: str, wanted: list[str]) -> tuple[bool, str]:
    """Whether pip finds wheels for all of them; the list of what it found, or its last words."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", python]
        command += ["--implementation", "cp", "--target", f"{folder}/target", "--report", str(report)]
        for platform in machine.platforms:
            command += ["--platform", platform]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return False, " ".join(done.stderr.split())[-400:]
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    files = sorted(item["download_info"]["url"].rsplit("/", 1)[1] for item in found)
    native = [name for name in files if not name.endswith("-none-any.whl")]
    return True, f"{len(files)} wheels, {len(native)} of them native: " + ", ".join(
        "-".join(name.split("-")[:2]) for name in native
    )


def main() -> int:
    """Print a line for each machine and Python; 1 when one of them lacks a wheel."""
    missing = 0
    for machine in MACHINES:
        wanted = requirements(PROJECT, machine)
        for python in PYTHONS:
            good, text = resolve(machine, python, wanted)
            missing += not good
            print(f"{'ok  ' if good else 'FAIL'} {machine.name}, Python {python}: {text}", flush=True)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main())
