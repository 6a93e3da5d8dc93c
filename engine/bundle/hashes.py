"""Whether a bundle's files still are what was compiled: read once, then remembered as long as nothing changes."""

import hashlib
import logging
from contextlib import suppress
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest, verify_hashes
from engine.errors import BundleError
from engine.files.opening import shown

log = logging.getLogger("hexserve.bundle")

FOLDER = "hashes"


def check_once(folder: Path, manifest: Manifest, memory: Path | None) -> None:
    """Compare every file's sha256 with the manifest's, unless these very files were compared before.

    memory: the folder where that is remembered, None = nowhere. BundleError names a file that differs: it would load,
    run and answer wrongly. Reads the whole bundle, so it is no work for an event loop.
    """
    try:
        marker = _marker(folder, manifest, memory) if memory is not None else None
        if marker is not None and marker.is_file():
            return
        size = sum(entry.bytes for entry in manifest.files.values())
        log.info("checking the hashes of %d files, %.2f GB, once", len(manifest.files), size / 1e9)
        damaged = verify_hashes(folder, manifest)
    except OSError as error:
        raise BundleError(f"the files of {folder} cannot be read: {shown(error)}") from error
    if damaged:
        raise BundleError(
            f"{damaged[0]} is damaged: its sha256 is not the manifest's; copy or compile the bundle again"
        )
    if marker is not None:
        _write(marker, manifest.name)


def remember(folder: Path, manifest: Manifest, memory: Path) -> None:
    """Note that the files are as the manifest says: they were hashed while they were written."""
    with suppress(OSError):  # then they are read once more
        _write(_marker(folder, manifest, memory), manifest.name)


def _marker(folder: Path, manifest: Manifest, memory: Path) -> Path:
    """Names the files as they lie there: whatever writes one changes its size or its time."""
    stamps = [(name, (folder / name).stat()) for name in sorted(manifest.files)]
    facts = (
        str(folder.resolve()),
        [(name, found.st_size, found.st_mtime_ns, found.st_ino) for name, found in stamps],
        [manifest.files[name].sha256 for name in sorted(manifest.files)],
    )
    return memory / FOLDER / f"{hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]}.json"


def _write(marker: Path, name: str) -> None:
    """A memory that cannot be written costs time, not the answer."""
    with suppress(OSError):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_bytes(msgspec.json.encode({"bundle": name}))
