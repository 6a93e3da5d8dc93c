"""The locks beside the Dockerfile: complete, within pyproject.toml's bounds, of one mind, and the same everywhere."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "deploy" / "locks"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = {"serve": [], "qnn": ["qnn"], "compile": ["compile"], "dev": ["compile", "bench", "otel", "qnn", "dev"]}
PYTHONS = ("3.11", "3.12", "3.13")
MACHINES = (("linux", "Linux", "x86_64"), ("linux", "Linux", "aarch64"), ("win32", "Windows", "ARM64"))
PINNED = re.compile(r"^(?P<requirement>\S+==[^\\]+?) \\$", re.MULTILINE)


def text(lock: str) -> str:
    return (LOCKS / f"{lock}.txt").read_text(encoding="utf-8")


def pins(lock: str) -> list[Requirement]:
    return [Requirement(found["requirement"]) for found in PINNED.finditer(text(lock))]


def version(pin: Requirement) -> str:
    (specifier,) = pin.specifier
    assert specifier.operator == "=="
    return specifier.version


def wanted(lock: str) -> list[Requirement]:
    """What pyproject.toml asks for in this set, without torch, which no lock holds."""
    lines = list(PYPROJECT["project"]["dependencies"])
    for extra in EXTRAS[lock]:
        lines += PYPROJECT["project"]["optional-dependencies"][extra]
    return [Requirement(line) for line in lines if not line.startswith(("hexserve[", "torch=="))]


def environment(python: str, machine: tuple[str, str, str]) -> dict[str, str]:
    platform, system, processor = machine
    return {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": platform,
        "platform_system": system,
        "platform_machine": processor,
        "extra": "",
    }


@pytest.mark.parametrize("machine", MACHINES, ids="-".join)
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("lock", EXTRAS)
def test_every_dependency_has_one_version_within_its_bounds(
    lock: str, python: str, machine: tuple[str, str, str]
) -> None:
    here = environment(python, machine)
    locked = {
        canonicalize_name(pin.name): version(pin) for pin in pins(lock) if not pin.marker or pin.marker.evaluate(here)
    }
    for requirement in wanted(lock):
        if not requirement.marker or requirement.marker.evaluate(here):
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("lock", EXTRAS)
def test_every_version_has_its_hashes(lock: str) -> None:
    entries = re.split(r"^(?=[a-zA-Z])", text(lock), flags=re.MULTILINE)[1:]
    assert len(entries) == len(pins(lock)) > 20
    for entry in entries:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}\b", entry), entry.splitlines()[0]


def test_what_installs_them_is_locked() -> None:
    assert [pin.name for pin in pins("uv")] == ["uv"]
    assert text("uv").count("--hash=sha256:") > 10


@pytest.mark.parametrize("lock", EXTRAS)
def test_no_package_has_two_versions_and_all_locks_agree(lock: str) -> None:
    names = [pin.name for pin in pins(lock)]
    assert len(names) == len(set(names))
    assert {str(pin).partition(";")[0].strip() for pin in pins(lock)} <= {
        str(pin).partition(";")[0].strip() for pin in pins("dev")
    }


@pytest.mark.parametrize("lock", EXTRAS)
def test_it_names_no_machine(lock: str) -> None:
    """Where packages come from is the reader's own pip configuration."""
    assert not re.search(r"https?:|file:|--(extra-)?index|--find-links| /|[A-Z]:\\", text(lock))


def test_what_builds_the_package_is_locked_where_it_is_built() -> None:
    requires = [Requirement(line) for line in PYPROJECT["build-system"]["requires"]]
    for lock in ("compile", "dev"):
        locked = {pin.name: version(pin) for pin in pins(lock)}
        for requirement in requires:
            assert requirement.specifier.contains(locked[requirement.name])


def test_what_torch_needs_is_locked() -> None:
    """Its CPU build asks for no library of a GPU's maker; what it does ask for must not be a surprise."""
    locked = {canonicalize_name(pin.name): Version(version(pin)) for pin in pins("dev")}
    assert "torch" not in locked
    lines = metadata.requires("torch") or []
    for requirement in map(Requirement, lines):
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        if not requirement.name.startswith(("nvidia-", "cuda-", "triton")):
            assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_this_environment_has_what_the_lock_says() -> None:
    """The versions that are tested are those that are locked, but for packages that are not installed."""
    if sys.version_info[:2] > (3, 13):
        pytest.skip("a newer Python than the locks are for")
    installed = {canonicalize_name(each.metadata["Name"]): each.version for each in metadata.distributions()}
    locked = {canonicalize_name(pin.name): version(pin) for pin in pins("dev")}
    both = set(installed) & set(locked)
    assert {name: installed[name] for name in both} == {name: locked[name] for name in both}
