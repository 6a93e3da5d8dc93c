"""Atomic output: everything is written to a sibling folder and renamed at the end, so no reader meets half a bundle."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from engine.bundle.manifest import MANIFEST_FILE
from engine.errors import CompileError
from engine.files import put_in_place
from engine.processes import process_is_alive


@contextmanager
def staged_folder(output: Path, force: bool) -> Iterator[Path]:
    """Yield a draft of a compiled bundle; on success it becomes `output`, on any error it is removed. Raises
    CompileError when output exists and `force` is not given or it is no bundle, or when the disk refuses."""
    if output.exists():
        # Only a bundle, damaged or not, or an empty folder may be replaced: --force must not cost anyone other files.
        if not force:
            raise CompileError(f"{output} exists already; --force replaces it")
        if not output.is_dir() or not ((output / MANIFEST_FILE).exists() or not any(output.iterdir())):
            raise CompileError(f"{output} is not a bundle, so --force does not replace it")
    with ExitStack() as drafts:
        try:
            draft = drafts.enter_context(draft_beside(output))
        except OSError as error:
            raise CompileError(f"cannot write beside {output}: {error.strerror or error}") from error
        try:
            yield draft
            publish(draft, output)
        except OSError as error:
            raise CompileError(f"writing {output} failed: {error.strerror or error}") from error


@contextmanager
def draft_beside(output: Path) -> Iterator[Path]:
    """Yield the new, empty folder `<output>.partial-<pid>`, removed at the end unless it was published. OSError."""
    draft = output.with_name(f"{output.name}.partial-{os.getpid()}")
    output.parent.mkdir(parents=True, exist_ok=True)
    remove_stale(output)
    draft.mkdir()
    try:
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def publish(draft: Path, output: Path, replaces: Callable[[Path], bool] = lambda found: True) -> None:
    """Rename a finished folder into place. OSError when that fails; then what was there before is there again.
    replaces: whether a folder that is there already goes, or stays, as another process was faster; `refuse` raises."""
    if output.exists() and not replaces(output):
        return
    old = output.with_name(f"{output.name}.replaced-{os.getpid()}")
    if output.exists():  # a folder cannot be renamed onto a full one
        output.replace(old)
    try:
        put_in_place(draft, output)
    except OSError:
        if not output.exists() or replaces(output):
            if old.exists():
                old.replace(output)
            raise
    shutil.rmtree(old, ignore_errors=True)


def refuse(found: Path) -> bool:
    """For `publish`: nothing that is there already is touched."""
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(found))


def remove_stale(output: Path) -> None:
    """Remove what writers of the same output that died have left; an earlier process may have had our own id."""
    pattern = re.compile(re.escape(output.name) + r"\.(?:partial|replaced)-(\d+)")
    for sibling in output.parent.iterdir():
        match = pattern.fullmatch(sibling.name)
        if match and (int(match[1]) == os.getpid() or not process_is_alive(int(match[1]))):
            if sibling.is_dir():
                shutil.rmtree(sibling, ignore_errors=True)
            else:
                sibling.unlink(missing_ok=True)
