"""The store of responses for the time of a server."""

from collections.abc import Iterator
from contextlib import contextmanager

from server.settings import Settings
from server.stored.database import StorageBounds
from server.stored.folder import data_folder
from server.stored.store import ResponseStore


@contextmanager
def opened_store(settings: Settings) -> Iterator[ResponseStore | None]:
    """The store, None when nothing is to be stored. DataFolderError before anything else of a start takes time."""
    if not settings.store_responses:
        yield None
        return
    store = ResponseStore(data_folder(settings.data_dir), StorageBounds(settings.stored_mb, settings.stored_days))
    try:
        yield store
    finally:
        store.close()
