"""Binary files of strangers, read front to back: every number is checked against what is left of the file."""

import struct
from pathlib import Path

import numpy as np

from engine.errors import CompileError
from engine.files import open_regular, reading

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class MappedReader:
    """Reads a little-endian file, which is mapped. CompileError when it cannot be opened, or ends early."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = 0
        with reading(path, CompileError):
            open_regular(path).close()
            is_empty = not path.stat().st_size
            # A plain array: slices of a memmap take ten times as long.
            self.data: Bytes = np.asarray(np.empty(0, np.uint8) if is_empty else np.memmap(path, np.uint8, "r"))

    def number(self, form: str, most: int = 1 << 64) -> int:
        """The next number, from 0 to `most`. form: as `struct` has it."""
        value: int = struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}")).tobytes())[0]
        if not 0 <= value <= most:
            raise self.broken(f"it has {value} where {most} is the most")
        return value

    def take(self, size: int) -> Bytes:
        """The next bytes, not copied: pages of their own would double the memory."""
        if self.place + size > len(self.data):
            raise self.broken("it ends early")
        found = self.data[self.place : self.place + size]
        self.place += size
        return found

    def broken(self, reason: str) -> CompileError:
        return CompileError(f"{self.path} is damaged: {reason}")
