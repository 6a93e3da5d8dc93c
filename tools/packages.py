"""Packages for an environment, by uv, from where pip is told to look: `python -m tools.packages PYTHON ARGUMENT...`.

uv is many times faster than pip, but does not read pip's configuration, where a mirror or a CPU build of torch stands.
Only the standard library is used here: it runs before anything is installed.
"""

import os
import re
import subprocess
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

UV = Path(sys.executable).parent / ("uv.exe" if sys.platform == "win32" else "uv")
PIP = ("-m", "pip", "--disable-pip-version-check")
SAID = re.compile(r"^(?:\w+|:env:)\.(index-url|extra-index-url|find-links|no-index|cert)='(.*)'$", re.MULTILINE)


def install(python: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run `uv pip install` (pip where there is no uv) for this interpreter, with arguments that both know."""
    pip = [sys.executable, *PIP, "--python", str(python), "install", "--quiet", "--no-compile"]
    uv = [str(UV), "pip", "install", "--quiet", "--python", str(python)]
    command, more = (uv, settings_of_uv(pip_configuration())) if UV.exists() else (pip, {})
    return subprocess.run(
        [*command, *arguments],
        env={**more, **os.environ}, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def environment(folder: Path, *arguments: str) -> Path:
    """The Python of an environment that has these by `install`, made anew when they are others. OSError."""
    python = folder.absolute() / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    marker, wanted = folder / "packages.txt", "\n".join(arguments)
    if not marker.is_file() or marker.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True, symlinks=sys.platform != "win32")
        if (done := install(python, *arguments)).returncode:
            raise OSError(f"{arguments[0]} could not be installed: {done.stderr.strip()[-300:]}")
        marker.write_text(wanted)
    return python


def pip_configuration() -> str:
    """What `pip config list` prints, its files first: variables of the environment come over them."""
    done = subprocess.run([sys.executable, *PIP, "config", "list"], capture_output=True, text=True, check=True)
    return "".join(sorted(done.stdout.splitlines(keepends=True), key=lambda line: line.startswith(":env:")))


def settings_of_uv(configuration: str) -> Mapping[str, str]:
    """Variables that make uv look where pip looks, and take the best version of all places as pip does."""
    said = {name: value.replace("\\n", " ").split() for name, value in SAID.findall(configuration)}
    found = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, variable, between in (
        ("index-url", "UV_DEFAULT_INDEX", " "),
        ("extra-index-url", "UV_INDEX", " "),
        ("find-links", "UV_FIND_LINKS", ","),
        ("no-index", "UV_NO_INDEX", " "),
        ("cert", "SSL_CERT_FILE", " "),
    ):
        if said.get(name):
            found[variable] = between.join(said[name])
    return found


def main() -> int:
    """Install; 1 with what was said when that fails."""
    done = install(Path(sys.argv[1]), *sys.argv[2:])
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
