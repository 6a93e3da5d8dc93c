"""Atomic output: everything is written to a sibling folder and renamed at the end, so no reader meets half a bundle."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.bundle.manifest import MANIFEST_FILE
from engine.errors import CompileError
from engine.sources.liveness import process_is_alive


@contextmanager
def staged_folder(output: Path, force: bool) -> Iterator[Path]:
    """Yield `<output>.partial-<pid>`; on success it becomes `output`, on any error it is removed.

    Raises CompileError when output exists and `force` is not given or it is no bundle, or when the disk refuses.
    """
    if output.exists():
        _check_replaceable(output, force)
    partial = output.with_name(f"{output.name}.partial-{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(output)
        partial.mkdir()
    except OSError as error:
        raise CompileError(f"cannot write beside {output}: {error.strerror or error}") from error
    try:
        yield partial
        _publish(partial, output)
    except OSError as error:
        raise CompileError(f"writing {output} failed: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_replaceable(output: Path, force: bool) -> None:
    """Only a bundle, damaged or not, or an empty folder may be replaced: --force must not cost anyone other files."""
    if not force:
        raise CompileError(f"{output} exists already; --force replaces it")
    if not output.is_dir() or not ((output / MANIFEST_FILE).exists() or not any(output.iterdir())):
        raise CompileError(f"{output} is not a bundle, so --force does not replace it")


def remove_stale(output: Path) -> None:
    """Remove what compilations of the same output that died have left."""
    pattern = re.compile(re.escape(output.name) + r"\.(?:partial|replaced)-(\d+)")
    for sibling in output.parent.iterdir():
        match = pattern.fullmatch(sibling.name)
        if match and not process_is_alive(int(match.group(1))):
            shutil.rmtree(sibling, ignore_errors=True)


def _publish(partial: Path, output: Path) -> None:
    """Rename into place; an older bundle steps aside first (a folder cannot be renamed onto a full one)."""
    old = output.with_name(f"{output.name}.replaced-{os.getpid()}")
    if output.exists():
        output.replace(old)
    try:
        partial.replace(output)
    except OSError:
        if old.exists():
            old.replace(output)
        raise
    shutil.rmtree(old, ignore_errors=True)
