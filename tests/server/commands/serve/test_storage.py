"""`hexserve serve` with and without a store: nothing is written unless asked, and what cannot be written is told."""

import asyncio
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import UnusableInput
from server.commands.serve.start import opened_store, start
from server.settings import Settings
from server.stored_responses.database import Database, ResponseKey, ResponseRecord, ResponseStatus
from server.stored_responses.store import DATABASE


def test_nothing_is_written_unless_it_is_asked_for(tmp_path: Path) -> None:
    with opened_store(Settings(EngineConfig("unused"), data_dir=str(tmp_path / "data"))) as store:
        assert store is None
    assert list(tmp_path.iterdir()) == []


def test_the_store_is_that_of_the_settings_and_is_closed(tmp_path: Path) -> None:
    settings = Settings(EngineConfig("unused"), store_responses=True, data_dir=str(tmp_path))
    record = ResponseRecord(ResponseKey("a", "b"), None, ResponseStatus.COMPLETED, False, {"output": []}, [])
    with opened_store(settings) as store:
        assert store is not None
        asyncio.run(store.ask(Database.add, record))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [DATABASE]
    with opened_store(settings) as store:
        assert store is not None
        assert asyncio.run(store.ask(Database.get, record.key)) == record


def test_a_folder_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(
        EngineConfig(str(tmp_path / "no-bundle")), port=0, store_responses=True, data_dir=str(tmp_path / "file")
    )
    with pytest.raises(UnusableInput, match=f"^responses cannot be stored in {tmp_path / 'file'}: File exists$"):
        start(settings)
