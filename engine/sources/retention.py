"""Bundles in the cache that nobody has used for a month are removed: each version of the compiler makes its own. The
modification time of a bundle's folder is when it was last used. Who serves a bundle holds a lock all the while."""

import errno
import glob
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from filelock import FileLock, Timeout

from engine.processes import child_environment


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file, which is made if need be and gone afterwards. on_wait is called once when another
    process holds it, before waiting. OSError when the file cannot be made or its file system has no locks."""
    lock = FileLock(path)
    if not _acquired(lock):
        on_wait()
        lock.acquire()
    with _held(lock, path):
        yield


@contextmanager
def exclusive_if_free(path: Path) -> Iterator[bool]:
    """As `exclusive`, but nobody waits: False when another one holds the lock."""
    lock = FileLock(path, thread_local=False)  # a compilation's is given back by the thread that awaits its end
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


UNUSED_S = 30 * 24 * 3600.0
USERS_FOLDER = "users"  # in the cache: a lock for each process that serves a bundle of it
# A bundle, or what a writer of it left that died; whether its process lives cannot be told from another container.
NAMES = re.compile(r"(.+-[0-9a-f]{16})(?:\.(?:partial|replaced)-\d+)?")


def mark_used(bundle: Path) -> None:
    """Count a bundle of the cache as used now; before anyone looks whether it is there."""
    with suppress(OSError):  # it is not there, or the cache is read-only
        os.utime(bundle)


def lock_of(bundle: Path) -> Path:
    """The lock of who makes or removes a bundle of the cache."""
    return bundle.with_name(f"{bundle.name}.lock")


@contextmanager
def in_use(bundle: Path, cache: Path) -> Iterator[None]:
    """Nobody removes the bundle meanwhile. One outside the cache is never removed, nor is one that we cannot lock."""
    with ExitStack() as held:
        if bundle.parent == cache:
            with suppress(OSError):  # a cache that we cannot write
                (cache / USERS_FOLDER).mkdir(exist_ok=True)
                held.enter_context(exclusive_if_free(cache / USERS_FOLDER / f"{bundle.name}.{uuid4().hex}"))
        yield


def remove_unused(cache: Path) -> None:
    """Remove bundles that were not used for UNUSED_S and are not in use, and drafts as old as that. OSError."""
    for folder in sorted(cache.iterdir()):
        name = NAMES.fullmatch(folder.name)
        if name and _is_old(folder):
            bundle = cache / name[1]
            with exclusive_if_free(lock_of(bundle)) as is_ours:
                if is_ours and not _has_users(bundle):
                    _remove(folder, bundle.with_name(f"{bundle.name}.replaced-{os.getpid()}"))


def _is_old(folder: Path) -> bool:
    return time.time() - folder.stat().st_mtime > UNUSED_S


def _has_users(bundle: Path) -> bool:
    """Whether somebody holds a lock of the bundle; those of processes that are gone are removed."""
    for user in (bundle.parent / USERS_FOLDER).glob(f"{glob.escape(bundle.name)}.*"):
        with exclusive_if_free(user) as is_free:
            if not is_free:
                return True
    return False


def _remove(folder: Path, gone: Path) -> None:
    """By way of another name, so that nobody meets half of it. Who marked it as used in this instant keeps it."""
    if folder != gone:
        folder.replace(gone)
    if _is_old(gone):
        shutil.rmtree(gone, ignore_errors=True)
    else:
        gone.replace(folder)


NICENESS = 10  # of 20: requests come first


class LaterCompilations:
    """Owns its processes; the end of this one, however it comes, is theirs, as the input they wait on ends with it."""

    def __init__(self) -> None:
        self._inputs = ExitStack()
        self._started: list[tuple[subprocess.Popen[bytes], threading.Thread]] = []

    def start(self, command: list[str], lock: Path, log: Path) -> bool:
        """Run a compilation; False where another process does. It has the lock until it ends; messages go to `log`."""
        with ExitStack() as held:
            if not held.enter_context(exclusive_if_free(lock)):
                return False
            its_input, ours = os.pipe()  # nobody writes
            self._inputs.callback(os.close, ours)
            with os.fdopen(its_input), log.open("wb") as messages:
                process = subprocess.Popen(
                    command, env=child_environment(), stdin=its_input, stdout=messages, stderr=messages
                )
            if sys.platform != "win32":
                with suppress(OSError):  # it may have ended already
                    os.setpriority(os.PRIO_PROCESS, process.pid, NICENESS)
            waiter = threading.Thread(target=_hold, args=(held.pop_all(), process), daemon=True)
            waiter.start()
            self._started.append((process, waiter))
        return True

    def wait(self) -> list[int]:
        for _, waiter in self._started:
            waiter.join()
        return [process.wait() for process, _ in self._started]

    def __enter__(self) -> "LaterCompilations":
        return self

    def __exit__(self, *_: object) -> None:
        self._inputs.close()
        self.wait()


def _hold(held: ExitStack, process: subprocess.Popen[bytes]) -> None:
    with held:
        process.wait()
