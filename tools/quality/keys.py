"""What tells one measured row from another: what was measured, on what, and what made it."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

LENGTH = 12


def key_of(*parts: str) -> str:
    """A few characters that are others when any part is."""
    found = hashlib.sha256()
    for part in parts:
        found.update(hashlib.sha256(part.encode()).digest())
    return found.hexdigest()[:LENGTH]


def checkpoint_key(folder: Path) -> str:
    """Tells one state of a checkpoint, a folder or a GGUF file, from another."""
    return _files_key([folder] if folder.is_file() else sorted(folder.glob("*.safetensors")))


def sources_key(*places: Path) -> str:
    """Tells one state of Python sources from another. places: files, and folders with all that is below them."""
    return _files_key(each for place in places for each in (sorted(place.rglob("*.py")) if place.is_dir() else [place]))


def text_key(*files: Path) -> str:
    """Tells one state of texts from another."""
    return _files_key(files)


def _files_key(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())
    return found.hexdigest()[:LENGTH]
