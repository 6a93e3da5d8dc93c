"""The bytes of a GGUF header: every count is held against what is left of the file before anything is sized by it."""

from io import BufferedReader

import numpy as np
from numpy.typing import NDArray

from engine.errors import CompileError

Value = int | float | bool | str | tuple[str, ...] | NDArray[np.generic]

HEADER_BYTES = 128 << 20
MAX_STRING = 16 << 20
MAX_STRINGS = 1 << 22  # of all arrays together
_STRING, _ARRAY, _BOOL = 8, 9, 7
_DTYPES = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<u1", "<u8", "<i8", "<f8")
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, _BOOL, 10, 11, 12), _DTYPES, strict=True))


class HeaderReader:
    """Reads from the start of a file of `size` bytes; CompileError names the file."""

    def __init__(self, stream: BufferedReader, size: int, title: str) -> None:
        self._stream = stream
        self._left = size
        self._title = title
        self._strings = 0
        self.position = 0

    def refused(self, reason: str) -> CompileError:
        """The error for a header that cannot be used."""
        return CompileError(f"{self._title}: {reason}")

    def take(self, count: int) -> bytes:
        """Exactly so many bytes."""
        if count > self._left:
            raise self.refused("the file ends inside its header")
        if self.position + count > HEADER_BYTES:
            raise self.refused(f"the header is larger than {HEADER_BYTES} bytes")
        content = self._stream.read(count)
        if len(content) != count:
            raise self.refused("the file ends inside its header")
        self._left -= count
        self.position += count
        return content

    def u32(self) -> int:
        """An unsigned number of 4 bytes."""
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        """An unsigned number of 8 bytes."""
        return int.from_bytes(self.take(8), "little")

    def text(self, longest: int = MAX_STRING) -> str:
        """A string of at most `longest` bytes of UTF-8."""
        size = self.u64()
        if size > longest:
            raise self.refused(f"the header has a string of {size} bytes, at most {longest} are read")
        try:
            return self.take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self.refused("the header has a string that is not UTF-8") from None

    def value(self) -> Value:
        """A value behind the number of its type; arrays of numbers as arrays, of strings as tuples."""
        kind = self.u32()
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        number = self._numbers(kind, 1)[0]
        return bool(number) if kind == _BOOL else _plain(number)

    def _array(self) -> Value:
        kind, count = self.u32(), self.u64()
        if kind != _STRING:
            return self._numbers(kind, count)
        self._strings += min(count, MAX_STRINGS + 1)
        if 8 * count > self._left or self._strings > MAX_STRINGS:
            raise self.refused(f"the header has an array of {count} strings, which is too many")
        return tuple(self.text() for _ in range(count))

    def _numbers(self, kind: int, count: int) -> NDArray[np.generic]:
        if kind not in _NUMBERS:
            raise self.refused(f"the header has a value of type {kind}, which is not read")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)


def _plain(number: np.generic) -> int | float:
    plain = number.item()
    assert isinstance(plain, int | float)
    return plain
