"""Stored responses, and their database. Every method blocks and belongs to one thread: `ResponseStore` owns it."""

import itertools
import math
import sqlite3
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

import msgspec

from server.http.errors import echo

VERSION = 1
BUSY_S = 10.0  # how long another server of this folder may hold the database
DAY_S = 86_400.0
AT_ONCE = 64  # responses removed between two looks at the size
SCHEMA = """
CREATE TABLE response (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    server TEXT NOT NULL,
    previous TEXT,
    status TEXT NOT NULL,
    is_background INTEGER NOT NULL,
    used REAL NOT NULL,
    size INTEGER NOT NULL,
    response BLOB NOT NULL,
    input BLOB NOT NULL,
    events BLOB
);
CREATE INDEX response_by_use ON response (used, size, status);
CREATE INDEX response_unfinished ON response (server) WHERE status IN ('queued', 'in_progress');
"""
# From a response to those before it. A response follows one that was there before it, so no circle can be.
CHAIN = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 0 FROM response WHERE id = :id AND owner = :owner
    UNION ALL
    SELECT response.id, response.previous, depth + 1 FROM response JOIN chain ON response.id = chain.previous
    WHERE response.owner = :owner
)
"""


class ResponseStatus(StrEnum):
    """OpenAI's names."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    CANCELLED = "cancelled"


CONTINUABLE = (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE)  # what a next response may follow
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ResponseKey:
    """Whose response: nobody but its owner finds it."""

    owner: str
    id: str


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """One response. `input`: the items of its own request, those of `previous` not among them.
    response: what msgspec writes as the response; as JSON is read, in a record of the database."""

    key: ResponseKey
    previous: str | None
    status: ResponseStatus
    is_background: bool
    response: Any
    input: list[Json]


class NotStored(Exception):
    """No such response, or it is somebody else's: callers cannot tell which."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class NotContinuable(Exception):
    """A response that no other one can follow; the message is the sentence for its caller."""


@dataclass(frozen=True, slots=True)
class StorageBounds:
    """How much is kept. days 0 = no bound on age."""

    megabytes: int = 512
    days: float = 30.0


class Database:
    """One connection. Raises sqlite3.Error, as every method does."""

    def __init__(self, file: Path, server: str, clock: Callable[[], float] = time.time) -> None:
        self._server = server
        self._clock = clock
        self._link = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
        try:
            self._link.execute("PRAGMA auto_vacuum = INCREMENTAL")  # counts for a new file only
            self._link.execute("PRAGMA journal_mode = WAL")
            self._link.execute("PRAGMA synchronous = NORMAL")
            self._link.execute("PRAGMA secure_delete = ON")  # what was deleted is not to be found in the file
            self._make()
        except BaseException:
            self._link.close()
            raise

    def _make(self) -> None:
        with self._change():
            (version,) = self._link.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in SCHEMA.split(";"):
                    self._link.execute(statement)
                self._link.execute(f"PRAGMA user_version = {VERSION}")
            elif version != VERSION:
                raise sqlite3.DatabaseError(f"it is of version {version}, this hexserve reads {VERSION}")

    @contextmanager
    def _change(self) -> Iterator[None]:
        with self._link:  # commits, or rolls back what a full disk has not rolled back already
            self._link.execute("BEGIN IMMEDIATE")
            yield

    def add(self, record: ResponseRecord) -> None:
        response, given = msgspec.json.encode(record.response), msgspec.json.encode(record.input)
        size = len(response) + len(given)
        values = (record.key.id, record.key.owner, self._server, record.previous, record.status, record.is_background)
        places = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)"
        with self._change():
            self._link.execute(f"INSERT INTO response VALUES {places}", (*values, self._clock(), size, response, given))

    def update(self, id: str, status: ResponseStatus, response: object, events: Sequence[object] | None) -> None:
        """The next state of a response; nothing happens when it was deleted."""
        said = msgspec.json.encode(response)
        packed = None if events is None else zlib.compress(msgspec.json.encode(events))
        query = "UPDATE response SET status = ?, response = ?, events = ?, size = length(input) + ? WHERE id = ?"
        with self._change():
            self._link.execute(query, (status, said, packed, len(said) + len(packed or b""), id))

    def get(self, key: ResponseKey) -> ResponseRecord:
        """A response. NotStored."""
        previous, status, background, said, given = self._row(key, "previous, status, is_background, response, input")
        response, items = msgspec.json.decode(said), msgspec.json.decode(given)
        return ResponseRecord(key, previous, ResponseStatus(status), bool(background), response, items)

    def events(self, key: ResponseKey) -> list[Json] | None:
        """The events of a response that has ended, None when none were stored. NotStored."""
        (packed,) = self._row(key, "events")
        return None if packed is None else cast("list[Json]", msgspec.json.decode(zlib.decompress(packed)))

    def _row(self, key: ResponseKey, columns: str) -> tuple[Any, ...]:
        query = f"SELECT {columns} FROM response WHERE id = ? AND owner = ?"
        row: tuple[Any, ...] | None = self._link.execute(query, (key.id, key.owner)).fetchone()
        if row is None:
            raise NotStored(key.id)
        return row

    def conversation(self, key: ResponseKey, limit: int) -> list[ResponseRecord]:
        """A response and all before it, the first one first; they count as used now. NotStored names a missing one;
        NotContinuable also beyond `limit` bytes."""
        asked = {"id": key.id, "owner": key.owner, "now": self._clock()}
        columns = "id, chain.previous, status, length(response) + length(input)"
        query = f"{CHAIN}SELECT {columns} FROM chain JOIN response USING (id) ORDER BY depth"
        with self._change():
            rows = self._link.execute(query, asked).fetchall()
            if not rows or rows[-1][1] is not None:
                raise NotStored(rows[-1][1] if rows else key.id)
            for found, _, status, _ in rows:
                if status not in CONTINUABLE:
                    why = f"it is {status}, not completed"
                    raise NotContinuable(f"The response {echo(found)} cannot be followed: {why}.")
            if (size := sum(row[3] for row in rows)) > limit:
                raise NotContinuable(f"The responses before this one have {size} bytes, the limit is {limit}.")
            self._link.execute(CHAIN + "UPDATE response SET used = :now WHERE id IN (SELECT id FROM chain)", asked)
        return [self.get(ResponseKey(key.owner, row[0])) for row in reversed(rows)]

    def history(self, key: ResponseKey) -> list[ResponseRecord]:
        asked = {"id": key.id, "owner": key.owner}
        rows = self._link.execute(CHAIN + "SELECT id FROM chain ORDER BY depth DESC", asked).fetchall()
        return [self.get(ResponseKey(key.owner, row[0])) for row in rows]

    def delete(self, key: ResponseKey) -> None:
        """Remove a response. NotStored."""
        with self._change():
            done = self._link.execute("DELETE FROM response WHERE id = ? AND owner = ?", (key.id, key.owner))
            if done.rowcount == 0:
                raise NotStored(key.id)
        self._shrink()

    def servers_at_work(self) -> list[str]:
        """Servers that had not finished a response when they last wrote."""
        query = "SELECT DISTINCT server FROM response WHERE status IN ('queued', 'in_progress') AND server != ?"
        return [row[0] for row in self._link.execute(query, (self._server,))]

    def fail_all_of(self, server: str, error: Json) -> int:
        """Mark what a server has left unfinished as failed; how many that were."""
        query = "SELECT id, response FROM response WHERE server = ? AND status IN ('queued', 'in_progress')"
        failed = ResponseStatus.FAILED
        with self._change():
            rows = self._link.execute(query, (server,)).fetchall()
            for id, said in rows:
                response = msgspec.json.encode(msgspec.json.decode(said) | {"status": failed, "error": error})
                self._link.execute("UPDATE response SET status = ?, response = ? WHERE id = ?", (failed, response, id))
        return len(rows)

    def evict(self, bounds: StorageBounds, pinned: Collection[str]) -> None:
        """Remove what is too old, then what is unused longest, until the rest fits. What runs or is `pinned` stays."""
        if bounds.days:
            self._remove(self._removable(pinned, self._clock() - bounds.days * DAY_S, -1))
        total = "SELECT coalesce(sum(size), 0) FROM response"
        while (excess := self._link.execute(total).fetchone()[0] - (bounds.megabytes << 20)) > 0:
            found = self._removable(pinned, math.inf, AT_ONCE)
            if not found:
                break
            sizes = itertools.accumulate(size for _, size in found)
            enough = next((number for number, size in enumerate(sizes, 1) if size >= excess), len(found))
            self._remove(found[:enough])
        self._shrink()

    def close(self) -> None:
        self._link.close()

    def _removable(self, pinned: Collection[str], used_before: float, most: int) -> list[tuple[str, int]]:
        """Id and size of those used before, the oldest first; most -1 = all."""
        return self._link.execute(
            "SELECT id, size FROM response WHERE used < ? AND status NOT IN ('queued', 'in_progress') "
            "AND id NOT IN (SELECT value FROM json_each(?)) ORDER BY used, rowid LIMIT ?",
            (used_before, msgspec.json.encode(list(pinned)).decode(), most),
        ).fetchall()

    def _remove(self, found: list[tuple[str, int]]) -> None:
        with self._change():
            self._link.executemany("DELETE FROM response WHERE id = ?", [(id,) for id, _ in found])

    def _shrink(self) -> None:
        self._link.executescript("PRAGMA incremental_vacuum")  # execute() would free one page
