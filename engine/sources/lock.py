"""One process at a time, by a lock of the operating system: free as soon as its owner is gone, however it ended."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be and gone afterwards. What the file holds does not count.

    on_wait is called once when another process holds the lock, before waiting for it. OSError when the file cannot be
    made or its file system has no locks.
    """
    lock = FileLock(path)
    if not _acquired(lock):
        on_wait()
        lock.acquire()
    with _held(lock, path):
        yield


@contextmanager
def exclusive_if_free(path: Path) -> Iterator[bool]:
    """As `exclusive`, but nobody waits: False when another one holds the lock."""
    lock = FileLock(path)
    if not _acquired(lock):
        yield False
        return
    with _held(lock, path):
        yield True


@contextmanager
def _held(lock: FileLock, path: Path) -> Iterator[None]:
    try:
        yield
    finally:
        # Who waits for this very file finds its work done; Windows removes a file only when it is closed.
        with suppress(OSError):
            path.unlink()
        lock.release()


def _acquired(lock: FileLock) -> bool:
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except NotImplementedError:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP), str(lock.lock_file)) from None
    return True
