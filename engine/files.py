"""Paths, opening and reading files, with errors that name them."""

import errno
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from reprlib import Repr
from typing import cast

from engine.errors import BundleError, HexserveError

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


def write_whole(path: Path, content: bytes) -> None:
    """Put a file there, whole or not at all; a second writer wins. OSError."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_bytes(content)
        put_in_place(draft, path)
    except OSError:
        with suppress(OSError):
            draft.unlink()
        raise


def put_in_place(draft: Path, path: Path) -> None:
    """Give a finished file or folder its name once the disk has what was written, so that a power loss leaves no short
    files under it. OSError."""
    for each in (*draft.rglob("*"), draft):
        if each.is_file() and os.access(each, os.W_OK):  # what we may not write is a link to a file of others
            with each.open("r+b") as stream:  # Windows stores only what is open for writing
                os.fsync(stream.fileno())
    draft.replace(path)


def expanded(path: str) -> Path:
    """With the home folder for a tilde. BundleError when there is none, and for what is no path."""
    if "\0" in path:
        raise BundleError(f"{path!r} holds a NUL character, which no path does")
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise BundleError(f"{path} names a home folder that does not exist") from None


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


class _Brief(Repr):
    """reprlib's, but integers of more digits than Python prints are told by their size."""

    def repr_int(self, x: int, level: int) -> str:
        return f"an integer of {x.bit_length()} bits" if x.bit_length() > 256 else repr(x)


_BRIEF = _Brief()
_BRIEF.maxstring = _BRIEF.maxother = 100


def read_json(path: Path, limit: int) -> object:
    """What a JSON file of at most `limit` bytes holds, all of it Unicode text. FileRefused, or OSError."""
    text = read_text(path, limit).removeprefix("\ufeff")
    try:
        value = json.loads(text)
        if "\\u" in text:  # an escape may be half a surrogate pair, which has no UTF-8 form
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise FileRefused("it holds text that is not Unicode (a lone surrogate)") from None
    except RecursionError:
        raise FileRefused("it is nested too deeply") from None
    except ValueError as error:
        raise FileRefused(f"it is not JSON: {one_line(error)}") from None
    return cast(object, value)


@contextmanager
def reading(what: object, kind: type[HexserveError] = BundleError) -> Iterator[None]:
    """Let an error of this kind say that this cannot be read, where an OSError is raised inside."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} cannot be read: {shown(error)}") from error


def read_object(path: Path, limit: int = JSON_BYTES) -> dict[str, object]:
    """The JSON object in a file; BundleError when it cannot be read or is not one."""
    with reading(path):
        value = read_json(path, limit)
    if not isinstance(value, dict):
        raise BundleError(f"{path} must hold a JSON object")
    return value


def brief(value: object) -> str:
    """A value of such a file for a sentence: long and deep ones are cut."""
    return _BRIEF.repr(value)


def one_line(error: BaseException) -> str:
    """What a library says of a file, as a part of a sentence."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def stamps(root: Path, paths: Iterable[Path]) -> list[tuple[str, int, int]]:
    """Path below `root`, size in bytes and modification time in ns of those that are files, in order."""
    found = [(path.relative_to(root).as_posix(), path.stat()) for path in sorted(paths) if path.is_file()]
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in found]


GGUF_SUFFIX = ".gguf"


def is_gguf(name: str | Path) -> bool:
    """Whether a file's name is that of a GGUF file, in capitals or not."""
    return str(name).lower().endswith(GGUF_SUFFIX)


# How llama.cpp names the parts of a model: NAME-00001-of-00003.gguf, counted from 1.
GGUF_PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)


def confined(folder: Path, name: str) -> Path:
    """The path of a file that a manifest or a config names; FileRefused when it leaves the folder, also by a link."""
    windows = PureWindowsPath(name)
    is_elsewhere = PurePosixPath(name).is_absolute() or windows.drive or windows.root or ".." in windows.parts
    if not name or not name.isprintable() or len(name) > 1024 or is_elsewhere:
        raise FileRefused(f"the name {name[:200]!r} does not stay inside its folder")
    path, home = folder / name, folder.resolve()
    # In Hugging Face's cache a snapshot's files are links into the repository's `blobs`.
    if home.parent.name == "snapshots" and (home.parent.parent / "blobs").is_dir():
        home = home.parent.parent
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError):  # a circle of links
        raise FileRefused(f"the name {name[:200]!r} cannot be followed") from None
    if not resolved.is_relative_to(home):
        raise FileRefused(f"{name[:200]!r} is a link to a place outside its folder")
    return path


def model_name(gguf: Path) -> str:
    """The name of a GGUF file's model: without suffix, and of a part without its number."""
    part = GGUF_PART.fullmatch(gguf.name)
    return part[1] if part else gguf.stem


def model_parts(gguf: Path) -> list[Path]:
    """The files of a GGUF file's model in order, whether they exist or not; a file that is no part stands alone."""
    part = GGUF_PART.fullmatch(gguf.name)
    if part is None:
        return [gguf]
    title, suffix = part[1], gguf.name[-len(GGUF_SUFFIX) :]
    return [gguf.with_name(f"{title}-{number:05d}-of-{part[3]}{suffix}") for number in range(1, int(part[3]) + 1)]


PROJECTOR = "mmproj"  # in the name of a GGUF file that reads images for another


def is_projector(gguf: Path) -> bool:
    """Whether a GGUF file's name says that it reads images for another."""
    return PROJECTOR in gguf.name.lower()


def projectors_beside(gguf: Path) -> list[Path]:
    """The files in a GGUF model's folder that read images, by name; of a folder that may not be listed none."""
    try:
        there = list(gguf.parent.iterdir())
    except PermissionError:
        return []
    found = (path for path in there if is_gguf(path) and path != gguf)
    return sorted(path for path in found if is_projector(path) and _may_be_regular(path))


def _may_be_regular(path: Path) -> bool:
    try:
        return is_regular(path)
    except OSError:  # refused when it is read
        return True


WHISPER_MAGIC = b"lmgg"  # 0x67676d6c, little-endian


def is_ggml_whisper(path: Path) -> bool:
    """Whether a file begins as those of whisper.cpp do; one that cannot be opened does not."""
    try:
        with open_regular(path) as stream:
            return stream.read(len(WHISPER_MAGIC)) == WHISPER_MAGIC
    except OSError:
        return False
