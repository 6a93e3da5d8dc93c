"""The file of pages: a head that says whose they are, then records of one size, each with a digest of its own.

Magic (8 bytes), length of the head (4, little-endian), head (JSON), then for each page its key (16), the digest (16) of
key and content, and the content. Pages that were used last stand last; how many there are follows from the file's size.
"""

import os
import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

import msgspec

from engine.files.content import one_line
from engine.files.opening import FileRefused, open_regular
from engine.sources.liveness import process_is_alive

MAGIC = b"HEXSKV1\n"
_HEAD_BYTES = struct.Struct("<I")
MOST_HEAD_BYTES = 4096
KEY_BYTES = DIGEST_BYTES = 16
Page = tuple[bytes, bytes]  # key and content


class PageFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose pages a file holds. identity: of bundle and weights; cache: the type of keys and values.

    page_columns: tokens of a page; page_bytes: size of one page's keys and values over all layers.
    """

    identity: str
    cache: str
    page_columns: int
    page_bytes: int

    @property
    def record_bytes(self) -> int:
        """What one page takes in a file."""
        return KEY_BYTES + DIGEST_BYTES + self.page_bytes


class NotAKvFile(FileRefused):
    """What lies there was not written by this program, so it is not replaced either."""


@dataclass(frozen=True, slots=True)
class KvFile:
    """A place for pages of at most `most_bytes`; `facts` say what they must be to be of use."""

    path: Path
    facts: PageFacts
    most_bytes: int

    @property
    def most_pages(self) -> int:
        """Pages that may be written."""
        return max(0, self.most_bytes) // self.facts.record_bytes

    def read(self, most: int) -> Iterator[Page]:
        """The last `most` pages; none when there is no file. One page is in memory at a time.

        Raises NotAKvFile, FileRefused for one of another bundle or a damaged one (pages before are sound), OSError.
        """
        try:
            stream = open_regular(self.path)
        except FileNotFoundError:
            return
        except FileRefused as error:
            raise NotAKvFile(str(error)) from None
        with stream:
            start = self._check_head(stream)
            size, each = os.fstat(stream.fileno()).st_size - start, self.facts.record_bytes
            if size % each:
                raise FileRefused(f"it is damaged: {size} bytes are no whole number of pages of {each}")
            first = max(0, size // each - most)
            stream.seek(start + first * each)
            for number in range(first, size // each):
                yield _page(stream.read(each), number, each)

    def write(self, pages: Iterable[Page]) -> int:
        """Write pages, most recently used last, and put the file in place whole; how many there are. OSError.

        Only the user may read the file: what was asked can be told from keys and values.
        """
        draft = self.path.with_name(f"{self.path.name}.partial-{os.getpid()}")
        self._remove_stale()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        count = 0
        try:
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as stream:
                _write_head(stream, self.facts)
                for count, (key, content) in enumerate(pages, 1):  # noqa: B007
                    stream.write(key + _digest(key, content) + content)
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(self.path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
        return count

    def _remove_stale(self) -> None:
        """Remove drafts of processes that ended while they wrote; an earlier one may have had our own id."""
        pattern = re.compile(re.escape(self.path.name) + r"\.partial-(\d+)")
        for sibling in self.path.parent.iterdir():
            match = pattern.fullmatch(sibling.name)
            if match and (int(match[1]) == os.getpid() or not process_is_alive(int(match[1]))):
                sibling.unlink(missing_ok=True)

    def _check_head(self, stream: BufferedReader) -> int:
        """Where the pages begin."""
        if stream.read(len(MAGIC)) != MAGIC:
            raise NotAKvFile("it is no file of cached pages")
        packed = stream.read(_HEAD_BYTES.size)
        length = _HEAD_BYTES.unpack(packed)[0] if len(packed) == _HEAD_BYTES.size else 0
        if not 0 < length <= MOST_HEAD_BYTES:
            raise FileRefused(f"it is damaged: its head cannot have {length} bytes")
        try:
            found = msgspec.json.decode(stream.read(length), type=PageFacts)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise FileRefused(f"it is damaged: {one_line(error)}") from None
        if found != self.facts:
            raise FileRefused("it was written for another bundle, other weights or another type of cache")
        return len(MAGIC) + _HEAD_BYTES.size + length


def _page(record: bytes, number: int, size: int) -> Page:
    key, content = record[:KEY_BYTES], record[KEY_BYTES + DIGEST_BYTES :]
    if len(record) != size or record[KEY_BYTES : KEY_BYTES + DIGEST_BYTES] != _digest(key, content):
        raise FileRefused(f"it is damaged: page {number} is not what was written")
    return key, content


def _digest(key: bytes, content: bytes) -> bytes:
    return blake2b(content, key=key, digest_size=DIGEST_BYTES).digest()


def _write_head(stream: BinaryIO, facts: PageFacts) -> None:
    head = msgspec.json.encode(facts)
    stream.write(MAGIC + _HEAD_BYTES.pack(len(head)) + head)
