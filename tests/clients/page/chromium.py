"""A Chromium to drive: the machine's own, or Debian's package, which apt installs as root and unpacks for others.

Only the standard library: it runs before a browser is there.
"""

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "msedge")
PACKAGES = ("chromium", "fonts-dejavu-core")
PLACE = Path(__file__).resolve().parents[3] / ".venv" / "clients" / "chromium"
WAIT = ("-o", "DPkg::Lock::Timeout=600")  # seconds, for another install
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir><cachedir>{root}/fonts</cachedir></fontconfig>
"""


class NoBrowserError(Exception):
    """There is no Chromium and none can be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Chromium:
    """A program and what it needs in its environment."""

    program: str
    variables: dict[str, str] = field(default_factory=dict)


def find_chromium() -> Chromium:
    """The browser of TEST_BROWSER, an installed one, or Debian's. Raises NoBrowserError."""
    named = os.environ.get("TEST_BROWSER")
    if named:
        return Chromium(named)
    if not (found := _installed()) and not (PLACE / "usr").is_dir():
        if shutil.which("apt-get") is None:
            raise NoBrowserError(
                "the page is tested in Chromium: install it, or name a browser in the variable TEST_BROWSER"
            )
        if os.geteuid() == 0:
            _install()
            found = _installed()
        else:
            _unpack()
    return Chromium(found) if found else _unpacked()


def _installed() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def _install() -> None:
    command = ["apt-get", "-q", "-y", *WAIT, "--no-install-recommends", "install", *PACKAGES]
    if subprocess.run(command, check=False, capture_output=True, stdin=subprocess.DEVNULL).returncode:
        if dpkg := shutil.which("dpkg"):
            _run([dpkg, "--configure", "-a"])  # what an install that was stopped left behind
        _run(["apt-get", "-q", *WAIT, "update"])
        _run(command)


def _unpack() -> None:
    """Without rights: apt with lists and packages in folders of ours, and every package it would install unpacked."""
    PLACE.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="chromium-draft-", dir=PLACE.parent))
    try:
        for folder in ("state/lists/partial", "cache/archives/partial", "root"):
            (draft / folder).mkdir(parents=True)
        own = {
            "Dir::State": draft / "state",
            "Dir::Cache": draft / "cache",
            "Dir::State::status": "/var/lib/dpkg/status",
        }
        apt = ["apt-get", "-q", "-y", "-o", "Debug::NoLocking=1"]
        for name, value in own.items():
            apt += ["-o", f"{name}={value}"]
        _run([*apt, "update"])
        _run([*apt, "--no-install-recommends", "--download-only", "install", *PACKAGES])
        for package in sorted((draft / "cache" / "archives").glob("*.deb")):
            _run(["dpkg-deb", "--extract", str(package), str(draft / "root")])
        if not PLACE.is_dir():  # otherwise another run was faster
            (draft / "root").rename(PLACE)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _unpacked() -> Chromium:
    program = PLACE / "usr" / "lib" / "chromium" / "chromium"
    if not program.exists():
        raise NoBrowserError(f"there is no {program}: remove {PLACE} and try again")
    config = PLACE / "fonts.conf"
    config.write_text(FONTS.format(root=PLACE), encoding="utf-8")
    libraries = sorted({str(path.parent) for path in (PLACE / "usr" / "lib").rglob("*.so*")})
    return Chromium(str(program), {"LD_LIBRARY_PATH": os.pathsep.join(libraries), "FONTCONFIG_FILE": str(config)})


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-2000:]
        raise NoBrowserError(
            f"Debian's Chromium cannot be had; without a network (or a mirror that apt knows) the page cannot be "
            f"tested. {' '.join(command[:1])} said:\n{said}"
        )
