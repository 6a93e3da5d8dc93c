"""The stored responses of one server: the data folder, the database behind a thread of its own, and its bounds."""

import asyncio
import logging
import os
import sqlite3
import stat
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar
from uuid import uuid4

import msgspec

from engine.errors import UnusableInput
from engine.sources.retention import exclusive, exclusive_if_free
from server.http.errors import StorageFailed
from server.stored_responses.database import Database, Json, ResponseStatus, StorageBounds

DATABASE = "responses.sqlite3"
LOCKS = "servers"


def data_folder(setting: str) -> Path:
    """The folder that a setting names, the user's own if empty. UnusableInput when it would be in no home."""
    try:
        if setting:
            return Path(setting).expanduser()
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "hexserve" / "data"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Application Support" / "hexserve"
        return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "hexserve"
    except RuntimeError:
        raise UnusableInput("this account has no home folder: name a folder with data_dir") from None


def prepare(folder: Path) -> Path:
    """Make the folder and the database file; their owner alone reads them, and -wal and -shm. UnusableInput."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / LOCKS).mkdir(mode=0o700, exist_ok=True)
        file = os.open(folder / DATABASE, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise UnusableInput(f"responses cannot be stored in {folder}: {DATABASE} is no regular file")
            if sys.platform != "win32":
                os.fchmod(file, 0o600)
        finally:
            os.close(file)
    except OSError as error:
        raise UnusableInput(f"responses cannot be stored in {folder}: {error.strerror or error}") from None
    return folder / DATABASE


_log = logging.getLogger("hexserve")
P = ParamSpec("P")
T = TypeVar("T")
BROKEN = (sqlite3.Error, OSError, zlib.error, msgspec.MsgspecError)
SWEEP_S = 3600.0  # how often age is looked at where nothing is stored
RESTARTED: Json = {"code": "server_error", "message": "The server ended while it generated this response."}


class ResponseStore:
    """Belongs to one event loop; SQLite runs in a thread that does nothing else, so no request waits for the disk.
    Its coroutines raise StorageFailed when the database cannot do it: a full disk, a damaged file."""

    def __init__(self, folder: Path, bounds: StorageBounds) -> None:
        """Open the database, and mark as failed what servers that are gone have left. UnusableInput."""
        self._bounds = bounds
        self._pins: Counter[str] = Counter()
        self._thread = ThreadPoolExecutor(1, "stored")
        self._cleanup = ExitStack()  # touched in the thread only, as a lock belongs to its thread
        self._swept_at = time.monotonic()
        try:
            self._database = self._thread.submit(self._open, folder).result()
        except BaseException:
            self._thread.submit(self._cleanup.close).result()
            self._thread.shutdown()
            raise

    async def ask(self, work: Callable[Concatenate[Database, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What a method of the database gives, called in its thread. Raises what that raises, and StorageFailed."""
        if time.monotonic() - self._swept_at > SWEEP_S:
            self._sweep()
        work_there = partial(work, self._database, *args, **kwargs)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work_there)
        except BROKEN as error:
            _log.error("stored responses: %s", error)
            raise StorageFailed(f"Stored responses cannot be used now: {error}.") from None

    async def update(
        self, id: str, status: ResponseStatus, response: object, events: Sequence[object] | None = None
    ) -> None:
        """Keep its next state; events: what its stream said, of one that has ended and may be read again."""
        await self.ask(Database.update, id, status, response, events)
        self._sweep()

    def pin(self, ids: Iterable[str]) -> None:
        """Keep these however old they are, until `unpin`."""
        self._pins.update(ids)

    def unpin(self, ids: Iterable[str]) -> None:
        self._pins.subtract(ids)
        self._pins += Counter()  # drops the zeros

    def close(self) -> None:
        self._thread.submit(self._cleanup.close).add_done_callback(_logged)
        self._thread.shutdown()

    def _sweep(self) -> None:
        self._swept_at = time.monotonic()
        self._thread.submit(self._database.evict, self._bounds, frozenset(self._pins)).add_done_callback(_logged)

    def _open(self, folder: Path) -> Database:
        file = prepare(folder)
        server = uuid4().hex
        try:
            # Alone: two that make the database at once would be in each other's way.
            with exclusive(folder / LOCKS / "opening", lambda: None):
                # The lock of a server is free as soon as its process is gone.
                self._cleanup.enter_context(exclusive_if_free(folder / LOCKS / server))
                database = Database(file, server)
                self._cleanup.callback(database.close)
                for other in database.servers_at_work():
                    with exclusive_if_free(folder / LOCKS / other) as is_gone:
                        count = database.fail_all_of(other, RESTARTED) if is_gone else 0
                    if count:
                        _log.warning("failed, because their server ended while it generated them: %d responses", count)
                database.evict(self._bounds, ())
                return database
        except BROKEN as error:
            raise UnusableInput(f"responses cannot be stored in {folder}: {error}") from None


def _logged(done: "Future[None]") -> None:
    error = done.exception()
    if error is not None:
        _log.error("stored responses: %s", error)
