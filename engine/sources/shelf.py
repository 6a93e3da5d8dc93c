"""What we have fetched ourselves: a note of each name, and the files of those that no other cache keeps.

A note is written before the first file comes, so that it can tell what is missing without a network.
"""

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from engine.files import GGUF_SUFFIX
from engine.sources.download import TIMEOUT, RemoteFile, download, part_of, unpack
from engine.sources.names import ARCHIVE, FetchFailed
from engine.sources.retention import exclusive

UNPACKED = "model"  # the folder that an archive becomes
_NOTE = ".json"
Tell = Callable[[str], None]


class Receipt(msgspec.Struct, frozen=True):
    """A name as the user writes it, and its files on the shelf; none for a repository in the shared cache."""

    name: str
    files: tuple[RemoteFile, ...] = ()


class Shelf:
    """A folder of ours. Its methods raise FetchFailed where it cannot be used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def receipts(self) -> list[Receipt]:
        """Of everything that was ever begun and not removed, by name."""
        found = [self._read(note) for note in self._folder.glob(f"*{_NOTE}")]
        return sorted((receipt for receipt in found if receipt is not None), key=lambda receipt: receipt.name)

    def receipt(self, name: str) -> Receipt | None:
        return self._read(self._note(name))

    def write(self, receipt: Receipt) -> None:
        """Remember what is about to be fetched."""
        with self._usable():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._note(receipt.name).write_bytes(msgspec.json.encode(receipt))

    def folder_of(self, name: str) -> Path:
        """Where its files are."""
        return self._folder / _slug(name)

    def missing(self, receipt: Receipt) -> list[RemoteFile]:
        """The files that are not there. A file has its name only when it is whole."""
        return [file for file in receipt.files if not self._place(receipt.name, file).exists()]

    def begun(self, receipt: Receipt) -> int:
        """Bytes of files that are not whole yet."""
        parts = [part_of(self.folder_of(receipt.name) / file.name) for file in self.missing(receipt)]
        return sum(part.stat().st_size for part in parts if part.is_file())

    def model(self, receipt: Receipt) -> Path:
        """The folder of a checkpoint or bundle, or a GGUF file (of several the first)."""
        place = self._place(receipt.name, receipt.files[0])
        return place if place.suffix == GGUF_SUFFIX or place.name == UNPACKED else self.folder_of(receipt.name)

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

    def _fetch_all(self, name: str, files: Sequence[RemoteFile], headers: dict[str, str]) -> None:
        with httpx.Client(timeout=TIMEOUT, headers=headers) as client, progress_bars() as bars:
            for file in files:
                task = bars.add_task(file.name, total=file.size or None)
                target = self.folder_of(name) / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                whole = download(file, target, partial(bars.advance, task), client)
                if whole.suffix == ARCHIVE:
                    unpack(whole, self._place(name, file))
                    whole.unlink()

    def _place(self, name: str, file: RemoteFile) -> Path:
        return self.folder_of(name) / (UNPACKED if file.name.endswith(ARCHIVE) else file.name)

    def _note(self, name: str) -> Path:
        return self._folder / f"{_slug(name)}{_NOTE}"

    def _read(self, note: Path) -> Receipt | None:
        try:
            return msgspec.json.decode(note.read_bytes(), type=Receipt)
        except (OSError, msgspec.MsgspecError):
            return None

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FetchFailed(f"{self._folder} cannot be used: {error.strerror or error}") from error


def _slug(name: str) -> str:
    """A file name that is one name's alone on every system."""
    return f"{re.sub(r'[^A-Za-z0-9.-]+', '--', name)[:80]}-{sha256(name.encode()).hexdigest()[:8]}"


def progress_bars() -> Progress:
    """Bars of bytes on stderr, where that is a terminal."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    return Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), disable=not sys.stderr.isatty())
