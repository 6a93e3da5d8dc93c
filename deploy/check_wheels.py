"""Does everything `pip install 'hexserve[qnn]'` needs exist as a binary wheel for the laptops?

Asks pip itself (`pip install --dry-run --only-binary=:all: --platform ...`) for every system and Python version in the
tables below. Needs the network; downloads metadata and, where an index has none, the wheels into pip's cache. A pip
older than LEAST_PIP downloads every wheel in a dry run, so a newer one is then fetched into a temporary folder. What
pip has to build on such a machine instead stands in SOURCES: those need no compiler, and nothing else may lack a wheel.
"""

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
PYTHONS = ("3.13", "3.12", "3.11")
TIMEOUT_S = 150.0  # longer means that pip tries older and older versions, because a wheel is missing
EXTRAS = ("qnn",)
LEAST_PIP = "24.1"


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
        ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 36))),
        {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    ),
)

# tokenizers wants huggingface-hub, every release of which wants PyYAML; that has wheels for Windows ARM64 from Python
# 3.12 on. Its sdist becomes pure Python where no C compiler or no libyaml is found (6.0.3, built with CC=false).
SOURCES = {("Windows ARM64", "3.11"): {"pyyaml": "6.0.3"}}


def requirements(project: Path, machine: Machine) -> list[str]:
    """Dependencies of the package with its extras, without those that are not for this machine."""
    table = tomllib.loads(project.read_text(encoding="utf-8"))["project"]
    lines = [*table["dependencies"], *(line for extra in EXTRAS for line in table["optional-dependencies"][extra])]
    parsed = [Requirement(line) for line in lines if not line.startswith("hexserve[")]
    wanted = [item for item in parsed if item.marker is None or item.marker.evaluate({**machine.markers, "extra": ""})]
    return [f"{item.name}{item.specifier}" for item in wanted]


def is_new_enough(version: str) -> bool:
    """Whether this pip asks for metadata alone in a dry run."""
    return Version(version) >= Version(LEAST_PIP)


@cache
def pip_command() -> tuple[str, ...]:
    """How to call a pip that is new enough: this Python's own, or one fetched for as long as this process runs.

    Raises subprocess.CalledProcessError when none can be fetched.
    """
    own = (sys.executable, "-m", "pip")
    if is_new_enough(metadata.version("pip")):
        return own
    folder = tempfile.mkdtemp(prefix="pip-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run([*own, "install", "--quiet", "--target", folder, f"pip>={LEAST_PIP}"], check=True)
    return (sys.executable, str(Path(folder) / "pip"))


def pip(machine: Machine, python: str, wanted: Iterable[str], *more: str) -> list[str] | None:
    """Files of the wheels pip would install there, None when it finds no solution (in time)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [*pip_command(), "install", "--dry-run", "--ignore-installed", "--quiet", *more]
        command += ["--disable-pip-version-check", "--only-binary=:all:", "--python-version", python]
        command += ["--implementation", "cp", "--target", f"{folder}/target", "--report", str(report)]
        for platform in machine.platforms:
            command += ["--platform", platform]
        try:
            done = subprocess.run([*command, *wanted], capture_output=True, timeout=TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            return None
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(item["download_info"]["url"].rsplit("/", 1)[1] for item in found)


def stand_ins(packages: Mapping[str, str], folder: Path) -> list[str]:
    """Options that let pip resolve packages it would build from source: empty wheels of theirs in a folder."""
    for name, version in packages.items():
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    return ["--find-links", str(folder)]


def resolve(machine: Machine, python: str, wanted: Iterable[str]) -> tuple[list[str] | None, dict[str, str]]:
    """Files of the wheels, None when one is missing; and what is built from source beside them."""
    built = SOURCES.get((machine.name, python), {})
    if not built:
        return pip(machine, python, wanted), {}
    with tempfile.TemporaryDirectory() as name:
        files = pip(machine, python, wanted, *stand_ins(built, Path(name)))
    if files is None:
        return None, built
    made = {f"{package}-{version}-py3-none-any.whl" for package, version in built.items()}
    return [file for file in files if file not in made], {
        package: version for package, version in built.items() if f"{package}-{version}-py3-none-any.whl" in files
    }


def missing(machine: Machine, python: str, names: Iterable[str]) -> list[str]:
    """Which of these packages have no wheel there at all."""
    return [name for name in names if pip(machine, python, [name], "--no-deps") is None]


def main() -> int:
    """Print a line for each machine and Python; 1 when one of them lacks a wheel."""
    bad = 0
    for machine in MACHINES:
        wanted = requirements(PROJECT, machine)
        known: list[str] = []  # native packages that another Python needed there
        for python in PYTHONS:
            files, built = resolve(machine, python, wanted)
            if files is None:
                bad += 1
                lacking = missing(machine, python, known or wanted)
                text = f"no wheel of {', '.join(lacking)}" if lacking else "no set of versions fits together"
                print(f"FAIL {machine.name}, Python {python}: {text}", flush=True)
                continue
            native = [name for name in files if not name.endswith("-none-any.whl")]
            known = [name.split("-")[0] for name in native]
            listed = ", ".join("-".join(name.split("-")[:2]) for name in native)
            text = f"{len(files)} wheels; native: {listed}"
            if built:
                text += f"; built there, without a compiler: {', '.join(map('-'.join, built.items()))}"
            print(f"ok   {machine.name}, Python {python}: {text}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
