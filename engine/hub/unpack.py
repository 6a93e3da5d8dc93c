"""Unpacking a fetched archive: nothing lands outside the folder, every file's CRC is tested, all or nothing."""

import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from engine.hub.catalogue import PullError
from engine.sources.publish import draft_beside, publish, refuse

COPY_BYTES = 1 << 20


def unpack(archive: Path, folder: Path, advance: Callable[[int], None]) -> Path:
    """Extract a zip into a new folder; a single folder inside it is taken as the bundle itself.

    advance is told the bytes written. Raises PullError for a damaged or hostile archive; then no folder is left.
    """
    try:
        with draft_beside(folder) as draft:
            _extract(archive, draft, advance)
            entries = list(draft.iterdir())
            inner = entries[0] if len(entries) == 1 and entries[0].is_dir() else draft
            publish(inner, folder, replaces=refuse)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        archive.unlink(missing_ok=True)
        raise PullError(f"{archive.name} is damaged ({error}); it was removed, try again") from error
    except OSError as error:
        raise PullError(f"{archive.name} cannot be unpacked into {folder}: {error.strerror or error}") from error
    return folder


def _extract(archive: Path, draft: Path, advance: Callable[[int], None]) -> None:
    with zipfile.ZipFile(archive) as content:
        members = [member for member in content.infolist() if not member.is_dir()]
        needed = sum(member.file_size for member in members)
        free = shutil.disk_usage(draft).free
        if needed > free:
            raise PullError(f"{archive.name} unpacks to {needed / 1e9:.2f} GB, {free / 1e9:.2f} GB are free")
        root = draft.resolve()
        for member in members:
            target = (root / member.filename).resolve()
            if not target.is_relative_to(root):
                raise PullError(f"{archive.name} has an entry outside its folder: {member.filename}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with content.open(member) as source, target.open("wb") as sink:
                while piece := source.read(COPY_BYTES):
                    sink.write(piece)
                    advance(len(piece))
