"""The store behind its thread: folders that can and cannot be used, servers that share one, failures as sentences."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import UnusableInput
from server.http.errors import StorageFailed, from_engine
from server.stored_responses.database import (
    Database,
    NotStored,
    ResponseKey,
    ResponseRecord,
    ResponseStatus,
    StorageBounds,
)
from server.stored_responses.store import DATABASE, LOCKS, ResponseStore, data_folder

BOUNDS = StorageBounds(1, 30.0)
RUNS, DONE = ResponseStatus.IN_PROGRESS, ResponseStatus.COMPLETED
# A server that begins a response and is gone.
GONE = """
import asyncio, os, sys
from pathlib import Path
from server.stored_responses.database import Database, StorageBounds
from server.stored_responses.database import ResponseKey, ResponseRecord
from server.stored_responses.database import ResponseStatus
from server.stored_responses.store import ResponseStore
store = ResponseStore(Path(sys.argv[1]), StorageBounds(1, 30.0))
record = ResponseRecord(ResponseKey("anna", "a"), None, ResponseStatus.QUEUED, True, {"output": []}, [])
asyncio.run(store.ask(Database.add, record))
os._exit(0)
"""


def record(id: str, status: ResponseStatus = DONE, size: int = 0) -> ResponseRecord:
    return ResponseRecord(ResponseKey("anna", id), None, status, False, {"output": ["x" * size]}, [])


@pytest.mark.skipif(sys.platform == "win32", reason="files have no such permissions")
def test_nobody_else_may_read_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / DATABASE).touch(0o644)
    store = ResponseStore(folder, BOUNDS)
    asyncio.run(store.ask(Database.add, record("a")))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir() if path.is_file()}
    assert set(modes) == {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm"} and set(modes.values()) == {0o600}
    store.close()
    assert [path.name for path in folder.iterdir() if path.is_file()] == [DATABASE]
    assert list((folder / LOCKS).iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_is_read_only(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UnusableInput, match=f"responses cannot be stored in {tmp_path}: Permission denied"):
        ResponseStore(tmp_path, BOUNDS)


@pytest.mark.parametrize("where", ["a/b", "folder"])
def test_a_place_that_cannot_be_a_data_folder(tmp_path: Path, where: str) -> None:
    (tmp_path / "a").write_text("a file")
    (tmp_path / "folder" / DATABASE).mkdir(parents=True)
    with pytest.raises(UnusableInput, match=f"responses cannot be stored in {tmp_path / where}: "):
        ResponseStore(tmp_path / where, BOUNDS)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_a_pipe_in_place_of_the_database_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / DATABASE)
    with pytest.raises(UnusableInput, match=f"responses cannot be stored in {tmp_path}: {DATABASE} is no regular file"):
        ResponseStore(tmp_path, BOUNDS)


def test_a_file_that_is_no_database_is_told_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / DATABASE).write_text("my diary, " * 500)
    with pytest.raises(UnusableInput, match=f"responses cannot be stored in {tmp_path}: file is not a database"):
        ResponseStore(tmp_path, BOUNDS)
    assert (tmp_path / DATABASE).read_text() == "my diary, " * 500


def test_what_a_server_left_that_is_gone_has_failed(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", GONE, str(tmp_path)], check=True, timeout=60)
    store = ResponseStore(tmp_path, BOUNDS)
    found = asyncio.run(store.ask(Database.get, ResponseKey("anna", "a")))
    store.close()
    assert found.status == "failed"
    assert found.response["error"] == {
        "code": "server_error",
        "message": "The server ended while it generated this response.",
    }


def test_two_servers_share_a_folder(tmp_path: Path) -> None:
    one = ResponseStore(tmp_path, BOUNDS)
    asyncio.run(one.ask(Database.add, record("a", RUNS)))
    two = ResponseStore(tmp_path, BOUNDS)
    assert asyncio.run(two.ask(Database.get, ResponseKey("anna", "a"))).status == "in_progress", "its server lives"
    asyncio.run(one.update("a", DONE, {"output": []}))
    assert asyncio.run(two.ask(Database.get, ResponseKey("anna", "a"))).status == "completed"
    two.close()
    one.close()


def test_the_bounds_are_kept_after_every_end_but_not_against_what_runs(tmp_path: Path) -> None:
    async def use() -> list[str]:
        for id in "abc":
            await store.ask(Database.add, record(id, RUNS))
        store.pin(["a"])
        for id in "abc":
            await store.update(id, DONE, {"output": ["x" * 700_000]})
        kept = [id for id in "abc" if await is_there(id)]
        store.unpin(["a"])
        await store.ask(Database.add, record("d", RUNS))
        await store.update("d", DONE, {"output": ["x" * 700_000]})
        return kept + [id for id in "abcd" if await is_there(id)]

    async def is_there(id: str) -> bool:
        try:
            await store.ask(Database.get, ResponseKey("anna", id))
        except NotStored:
            return False
        return True

    store = ResponseStore(tmp_path, BOUNDS)
    assert asyncio.run(use()) == ["a", "d"]
    store.close()


def test_a_full_disk_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    store = ResponseStore(tmp_path, BOUNDS)
    monkeypatch.setattr(Database, "add", full)
    with pytest.raises(
        StorageFailed, match=r"Stored responses cannot be used now: database or disk is full\."
    ) as error:
        asyncio.run(store.ask(Database.add, record("a")))
    assert (from_engine(error.value).status, from_engine(error.value).type) == (500, "server_error")
    store.close()


def test_the_folder_of_a_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    assert data_folder("~/x") == tmp_path / "x"
    assert (data_folder("") == tmp_path / "share" / "hexserve") == (sys.platform == "linux")
    with pytest.raises(UnusableInput, match="data_dir"):
        data_folder("~nobody-of-this-name/x")
