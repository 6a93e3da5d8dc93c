"""Names that a manifest or a config gives to files: each stays inside its folder, also through links."""

from pathlib import Path, PurePosixPath, PureWindowsPath

from engine.files.opening import FileRefused

GGUF_SUFFIX = ".gguf"


def confined(folder: Path, name: str) -> Path:
    """The path of a file that a manifest or a config names; FileRefused when it leaves the folder, also by a link."""
    if not _is_plain(name):
        raise FileRefused(f"the name {name[:200]!r} does not stay inside its folder")
    path = folder / name
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # a circle of links
        raise FileRefused(f"the name {name[:200]!r} cannot be followed") from None
    if not resolved.is_relative_to(_home_of(folder.resolve())):
        raise FileRefused(f"{name[:200]!r} is a link to a place outside its folder")
    return path


def _is_plain(name: str) -> bool:
    if not name or not name.isprintable() or len(name) > 1024:
        return False
    windows = PureWindowsPath(name)
    return not (PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts)


def _home_of(folder: Path) -> Path:
    """The folder itself; in Hugging Face's cache, where a snapshot's files are links into `blobs`, the repository."""
    is_snapshot = folder.parent.name == "snapshots" and (folder.parent.parent / "blobs").is_dir()
    return folder.parent.parent if is_snapshot else folder
