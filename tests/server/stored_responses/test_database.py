"""The database by itself: what is found by whom, what follows what, and what goes first."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from server.stored_responses.database import (
    DAY_S,
    Database,
    NotContinuable,
    NotStored,
    ResponseKey,
    ResponseRecord,
    ResponseStatus,
    StorageBounds,
)

MIB = 1 << 20


class Clock:
    """A time that stands still until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(tmp_path: Path, clock: Clock) -> Iterator[Database]:
    database = Database(tmp_path / "file", "one", clock)
    yield database
    database.close()


def key(id: str, owner: str = "anna") -> ResponseKey:
    return ResponseKey(owner, id)


def add(
    database: Database,
    id: str,
    previous: str | None = None,
    status: ResponseStatus = ResponseStatus.COMPLETED,
    size: int = 0,
    owner: str = "anna",
) -> None:
    said = {"id": id, "output": ["x" * size]}
    database.add(ResponseRecord(key(id, owner), previous, status, False, said, [{"asked": id}]))


def found(database: Database, *ids: str) -> list[str]:
    kept = []
    for id in ids:
        with suppress(NotStored):
            kept.append(database.get(key(id)).key.id)
    return kept


def test_what_is_kept_comes_back(database: Database) -> None:
    add(database, "a", status=ResponseStatus.IN_PROGRESS)
    database.update("a", ResponseStatus.COMPLETED, {"output": ["done"]}, [{"n": 0}, {"n": 1}])
    record = database.get(key("a"))
    assert (record.status, record.response, record.input) == ("completed", {"output": ["done"]}, [{"asked": "a"}])
    assert database.events(key("a")) == [{"n": 0}, {"n": 1}]


def test_only_its_owner_finds_it(database: Database) -> None:
    add(database, "a")
    for read in (database.get, database.events, database.delete):
        with pytest.raises(NotStored):
            read(key("a", "bert"))
    assert database.history(key("a", "bert")) == []
    with pytest.raises(NotStored):
        database.conversation(key("a", "bert"), MIB)
    assert found(database, "a") == ["a"]


def test_the_end_of_what_was_deleted_meanwhile_is_dropped(database: Database) -> None:
    add(database, "a", status=ResponseStatus.IN_PROGRESS)
    database.delete(key("a"))
    database.update("a", ResponseStatus.COMPLETED, {}, None)
    assert found(database, "a") == []


def test_a_conversation_from_its_beginning(database: Database) -> None:
    for id, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        add(database, id, previous)
    assert [record.key.id for record in database.conversation(key("c"), MIB)] == ["a", "b", "c"]


def test_a_hole_in_a_conversation_is_named(database: Database) -> None:
    for id, previous in (("a", None), ("b", "a"), ("c", "b")):
        add(database, id, previous)
    database.delete(key("a"))
    with pytest.raises(NotStored) as missing:
        database.conversation(key("c"), MIB)
    assert missing.value.id == "a"
    assert [record.key.id for record in database.history(key("c"))] == ["b", "c"]


def test_nobody_reaches_anothers_response_through_an_own_one(database: Database) -> None:
    add(database, "a", owner="bert")
    add(database, "b", "a")
    with pytest.raises(NotStored):
        database.conversation(key("b"), MIB)


@pytest.mark.parametrize("status", ["queued", "in_progress", "failed", "cancelled"])
def test_what_has_not_ended_well_cannot_be_followed(database: Database, status: str) -> None:
    add(database, "a", status=ResponseStatus(status))
    with pytest.raises(NotContinuable, match=f"^The response 'a' cannot be followed: it is {status}, not completed.$"):
        database.conversation(key("a"), MIB)


def test_a_conversation_has_a_bound(database: Database) -> None:
    add(database, "a", size=1000)
    add(database, "b", "a", size=1000)
    with pytest.raises(NotContinuable, match=r"^The responses before this one have 2\d+ bytes"):
        database.conversation(key("b"), 1500)


def test_what_was_not_used_for_longest_goes_first(database: Database, clock: Clock) -> None:
    for id in "abcd":
        clock.now += 1
        add(database, id, size=300_000)
    clock.now += 1
    database.conversation(key("a"), MIB)  # used again
    database.evict(StorageBounds(1, 0), ())
    assert found(database, *"abcd") == ["a", "c", "d"]


def test_who_is_used_keeps_those_before_it(database: Database, clock: Clock) -> None:
    add(database, "a", size=400_000)
    add(database, "b", "a")
    clock.now += 1
    add(database, "x", size=400_000)
    clock.now += 1
    database.conversation(key("b"), MIB)
    add(database, "y", size=400_000)
    database.evict(StorageBounds(1, 0), ())
    assert found(database, *"abxy") == ["a", "b", "y"]


def test_age(database: Database, clock: Clock) -> None:
    add(database, "a")
    clock.now += 2 * DAY_S
    add(database, "b")
    database.evict(StorageBounds(1, 0), ())
    assert found(database, *"ab") == ["a", "b"]
    database.evict(StorageBounds(1, 1), ())
    assert found(database, *"ab") == ["b"]


def test_what_runs_or_is_pinned_stays(database: Database, clock: Clock) -> None:
    add(database, "a", size=700_000)
    add(database, "b", size=700_000, status=ResponseStatus.IN_PROGRESS)
    add(database, "c", size=700_000)
    clock.now += 9 * DAY_S
    database.evict(StorageBounds(1, 1), {"a"})
    assert found(database, *"abc") == ["a", "b"]


def test_the_file_gets_smaller_and_forgets(database: Database, tmp_path: Path) -> None:
    add(database, "a", size=3 * MIB)
    database.delete(key("a"))
    with closing(sqlite3.connect(tmp_path / "file")) as other:
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert (tmp_path / "file").stat().st_size < MIB
    assert b"xxxxxxxx" not in (tmp_path / "file").read_bytes()


def test_those_of_a_server_that_is_gone_have_failed(database: Database, tmp_path: Path) -> None:
    add(database, "a", status=ResponseStatus.QUEUED)
    add(database, "b", status=ResponseStatus.COMPLETED)
    with closing(Database(tmp_path / "file", "two")) as next_one:
        assert next_one.servers_at_work() == ["one"] and database.servers_at_work() == []
        assert next_one.fail_all_of("one", {"code": "c"}) == 1
    assert (database.get(key("a")).status, database.get(key("a")).response["error"]) == ("failed", {"code": "c"})
    assert database.get(key("b")).status == "completed"


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path, database: Database) -> None:
    with closing(sqlite3.connect(tmp_path / "file")) as other:
        other.execute("PRAGMA user_version = 2")
    with pytest.raises(sqlite3.DatabaseError, match="it is of version 2, this hexserve reads 1"):
        Database(tmp_path / "file", "two")


def test_a_full_disk_loses_nothing(database: Database) -> None:
    add(database, "a")
    (pages,) = database._link.execute("PRAGMA page_count").fetchone()
    database._link.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        add(database, "b", size=MIB)
    assert found(database, *"ab") == ["a"]
    database.delete(key("a"))
