"""What a GGUF file says of itself: every count is held against what is left of the file before it sizes anything.

The `gguf` package's own reader maps the file and trusts its counts, so the header is read here and the package keeps
what it knows best: block formats.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from engine.compile.sources.mapped import Bytes, MappedReader
from engine.errors import CompileError
from engine.files import brief, model_parts

Value = int | float | bool | str | tuple[str, ...] | NDArray[np.generic]

HEADER_BYTES = 128 << 20
MAX_STRING = 16 << 20
MAX_STRINGS = 1 << 22  # of all arrays together
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SIZE = struct.Struct("<Q")
_DTYPES = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "<u1", "<u8", "<i8", "<f8")
_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, _BOOL, 10, 11, 12), _DTYPES, strict=True))


class HeaderReader(MappedReader):
    """Reads from the start of a file."""

    _strings = 0  # of all arrays so far

    def take(self, size: int) -> Bytes:
        found = super().take(size)
        if self.place > HEADER_BYTES:
            raise self.broken(f"its header is larger than {HEADER_BYTES} bytes")
        return found

    def text(self, longest: int = MAX_STRING) -> str:
        """A string of at most `longest` bytes of UTF-8."""
        size = self.number("Q")
        if size > longest:
            raise self.broken(f"the header has a string of {size} bytes, at most {longest} are read")
        try:
            return self.take(size).tobytes().decode("utf-8")
        except UnicodeDecodeError:
            raise self.broken("the header has a string that is not UTF-8") from None

    def value(self) -> Value:
        """A value behind the number of its type; arrays of numbers as arrays, of strings as tuples."""
        kind = self.number("I")
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        number: int | float = self._numbers(kind, 1)[0].item()
        return bool(number) if kind == _BOOL else number

    def _array(self) -> Value:
        kind, count = self.number("I"), self.number("Q")
        if kind != _STRING:
            return self._numbers(kind, count)
        self._strings += min(count, MAX_STRINGS + 1)
        if 8 * count > len(self.data) - self.place or self._strings > MAX_STRINGS:
            raise self.broken(f"the header has an array of {count} strings, which is too many")
        return self._quick_strings(count) or tuple(self.text() for _ in range(count))

    def _quick_strings(self, count: int) -> tuple[str, ...]:
        """A vocabulary at a third of the time; nothing where `text` has something to say against it."""
        data, place, found = self.data[:HEADER_BYTES].data, self.place, list[str]()
        try:
            for _ in range(count):
                size = _SIZE.unpack_from(data, place)[0]
                start, place = place + _SIZE.size, place + _SIZE.size + size
                if size > MAX_STRING or place > len(data):
                    return ()
                found.append(str(data[start:place], "utf-8"))
        except (struct.error, UnicodeDecodeError):
            return ()
        self.place = place
        return tuple(found)

    def _numbers(self, kind: int, count: int) -> NDArray[np.generic]:
        if kind not in _NUMBERS:
            raise self.broken(f"the header has a value of type {kind}, which is not read")
        dtype = np.dtype(_NUMBERS[kind])
        return np.frombuffer(self.take(count * dtype.itemsize).tobytes(), dtype)


MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = MAX_TENSORS = 1 << 16
MAX_KEY = 1 << 16
MAX_NAME = 256
MAX_DIMS = 4
PART_NUMBER, PART_COUNT, PART_TENSORS = "split.no", "split.count", "split.tensors.count"  # the first counts from 0
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class StoredRows:
    """A tensor of a file: shape as numpy counts it (rows last but one), where its bytes begin, bytes of a row."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    row_bytes: int

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def bytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A header whose tensors all lie inside its files. path: of the first file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredRows]


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file of version 2 or 3, and of the parts beside it where it is the first of several.
    CompileError with one sentence for anything else. What parts say of themselves: llama.cpp's `llama-gguf-split`."""
    first = _read(path)
    parts = first.metadata.get(PART_COUNT, 1)
    if not isinstance(parts, int) or parts <= 1:
        return first
    paths = model_parts(path)
    if len(paths) != parts or paths[0] != path or first.metadata.get(PART_NUMBER) != 0:
        raise CompileError(f"{path.name} is one of {brief(parts)} files of a model; name the first, *-00001-of-*.gguf")
    tensors = dict(first.tensors)
    for number, other in enumerate(map(_read, paths[1:]), 1):
        if other.metadata.get(PART_NUMBER) != number or other.metadata.get(PART_COUNT) != parts:
            raise CompileError(f"{other.path} does not say that it is part {number + 1} of {parts}")
        if twice := sorted(tensors.keys() & other.tensors.keys()):
            raise CompileError(f"{other.path} has the tensor {brief(twice[0])} of another part")
        tensors |= other.tensors
    if len(tensors) != first.metadata.get(PART_TENSORS, len(tensors)):
        raise CompileError(f"{path} and its parts have {len(tensors)} tensors, {PART_TENSORS} says another number")
    return GgufHeader(path, first.metadata, tensors)


def _read(path: Path) -> GgufHeader:
    """The header of one file."""
    reader = HeaderReader(path)
    if reader.data[: len(MAGIC)].tobytes() != MAGIC:
        raise CompileError(f"{path} is not a GGUF file")
    reader.take(len(MAGIC))
    version = reader.number("I")
    if version not in VERSIONS:
        raise CompileError(f"{path} is GGUF of version {version}; versions 2 and 3 are read, little-endian ones")
    tensors, keys = reader.number("Q"), reader.number("Q")
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        raise reader.broken(f"the header counts {tensors} tensors and {keys} keys, at most {MAX_KEYS} are read")
    metadata: dict[str, Value] = {}
    for _ in range(keys):
        key = reader.text(MAX_KEY)
        if key in metadata:
            raise reader.broken(f"the header has the key {brief(key)} twice")
        metadata[key] = reader.value()
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
        raise reader.broken(f"general.alignment must be a multiple of 8 up to {1 << 20}, it is {brief(alignment)}")
    described = [_tensor(reader) for _ in range(tensors)]
    start = -(-reader.place // alignment) * alignment
    found: dict[str, StoredRows] = {}
    for name, shape, kind, offset in described:
        if name in found:
            raise reader.broken(f"the header has the tensor {brief(name)} twice")
        found[name] = _placed(reader, name, shape, kind, start + offset)
    return GgufHeader(path, metadata, found)


def _tensor(reader: HeaderReader) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset as written; the file counts dimensions from the fastest on."""
    name = reader.text(MAX_NAME)
    count = reader.number("I")
    if not 1 <= count <= MAX_DIMS:
        raise reader.broken(f"tensor {brief(name)} has {count} dimensions, 1 to {MAX_DIMS} are read")
    shape = tuple(reader.number("Q") for _ in range(count))[::-1]
    return name, shape, reader.number("I"), reader.number("Q")


def _placed(reader: HeaderReader, name: str, shape: tuple[int, ...], number: int, offset: int) -> StoredRows:
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise reader.broken(f"tensor {brief(name)} has the unknown type {number}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or shape[-1] % block:
        raise reader.broken(f"tensor {brief(name)} has shape {brief(shape)}, which {kind.name} does not store")
    stored = StoredRows(reader.path, name, shape, kind, offset, shape[-1] // block * block_bytes)
    if offset + stored.bytes > len(reader.data):
        raise reader.broken(f"tensor {brief(name)} does not lie inside the file")
    return stored
