"""Opening files that others wrote: only regular ones, never more bytes than the kind of file needs.

A pipe, a device or a socket is refused without being opened, so nothing here can hang.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_MEBIBYTE = 1 << 20
MANIFEST_BYTES = 64 * _MEBIBYTE  # NPU bundles list every tensor of every variant
JSON_BYTES = 8 * _MEBIBYTE  # config.json and the other small ones
INDEX_BYTES = 64 * _MEBIBYTE
TOKENIZER_BYTES = 128 * _MEBIBYTE
TEMPLATE_BYTES = 1 * _MEBIBYTE
TEXT_BYTES = 1 * _MEBIBYTE  # settings and keys
MARKER_BYTES = 8 * _MEBIBYTE  # what we remember in the cache

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class FileRefused(OSError):
    """A file that is not opened, or whose content is not what it must be; `str(error)` is the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EINVAL, reason)

    def __str__(self) -> str:
        return str(self.strerror)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. FileRefused for anything else, OSError when the system refuses."""
    _check_regular(path.stat().st_mode)
    # The name may mean another file by now: without O_NONBLOCK a pipe would wait for its writer.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(path, flags)
    try:
        _check_regular(os.fstat(descriptor).st_mode)
    except FileRefused:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path, limit: int) -> bytes:
    """The whole of a regular file of at most `limit` bytes. FileRefused, or OSError."""
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(limit + 1) if size <= limit else b""
    if size > limit or len(content) > limit:
        raise FileRefused(f"it is larger than {limit} bytes")
    return content


def read_text(path: Path, limit: int) -> str:
    """The same as text with its line ends as newlines; FileRefused when it is not UTF-8."""
    try:
        text = read_bytes(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileRefused(f"it is not UTF-8 (byte {error.start})") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_regular(path: Path) -> bool:
    """Whether a regular file lies there, perhaps behind a link. OSError when the folder cannot be searched."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def shown(error: OSError) -> str:
    """The reason without number and path, for a sentence that names the file already."""
    return error.strerror or str(error)


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((word for is_kind, word in _KINDS if is_kind(mode)), "no regular file")
        raise FileRefused(f"it is {kind}, not a regular file")
