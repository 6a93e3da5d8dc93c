"""The data folder: where it is, who may read it, and the locks by which its servers know who of them lives."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from engine.sources.lock import exclusive_if_free

DATABASE = "responses.sqlite3"
LOCKS = "servers"


class DataFolderError(Exception):
    """The data folder cannot be used; the message names it and says why."""


def data_folder(setting: str) -> Path:
    """The folder that a setting names, the user's own if empty. DataFolderError when it would be in no home."""
    try:
        return Path(setting).expanduser() if setting else _own_folder()
    except RuntimeError:
        raise DataFolderError("this account has no home folder: name a folder with data_dir") from None


def prepare(folder: Path) -> Path:
    """Make the folder, and the database file as one that only its owner reads. DataFolderError.

    SQLite gives its other files (-wal, -shm) the permissions of the database.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / LOCKS).mkdir(mode=0o700, exist_ok=True)
        file = os.open(folder / DATABASE, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise DataFolderError(f"responses cannot be stored in {folder}: {DATABASE} is no regular file")
            if sys.platform != "win32":
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
    except OSError as error:
        raise DataFolderError(f"responses cannot be stored in {folder}: {error.strerror or error}") from None
    return folder / DATABASE


def held(folder: Path, server: str) -> AbstractContextManager[bool]:
    """The lock of one server, free as soon as its process is gone; False when another process has it. OSError."""
    return exclusive_if_free(folder / LOCKS / server)


def dead(folder: Path, servers: list[str]) -> Iterator[str]:
    """Those whose processes are gone."""
    for server in servers:
        with held(folder, server) as is_free:
            if is_free:
                yield server


def _own_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "hexserve" / "data"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "hexserve"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "hexserve"
