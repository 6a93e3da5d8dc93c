"""What a GGUF file says of itself: its metadata, and where each tensor lies.

The `gguf` package's own reader maps the file and trusts its counts, so the header is read here and the package keeps
what it knows best: block formats.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.compile.gguf.reader import HeaderReader, Value
from engine.errors import CompileError
from engine.files.content import brief
from engine.files.opening import open_regular, shown

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = MAX_TENSORS = 1 << 16
MAX_KEY = 1 << 16
MAX_NAME = 256
MAX_DIMS = 4
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class StoredRows:
    """One tensor of the file: shape as numpy counts it (rows last but one), where its bytes begin, bytes of a row."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    row_bytes: int

    @property
    def rows(self) -> int:
        """Runs of the last axis."""
        return math.prod(self.shape[:-1])

    @property
    def bytes(self) -> int:
        """The whole tensor's."""
        return self.rows * self.row_bytes


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A header whose tensors all lie inside the file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, StoredRows]


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file of version 2 or 3. CompileError with one sentence for anything else."""
    try:
        with open_regular(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            return _header(path, HeaderReader(stream, size, str(path)), size)
    except OSError as error:
        raise CompileError(f"{path} cannot be read: {shown(error)}") from error


def _header(path: Path, reader: HeaderReader, size: int) -> GgufHeader:
    if size < len(MAGIC) or reader.take(len(MAGIC)) != MAGIC:
        raise CompileError(f"{path} is not a GGUF file")
    version = reader.u32()
    if version not in VERSIONS:
        raise CompileError(f"{path} is GGUF of version {version}; versions 2 and 3 are read, little-endian ones")
    tensors, keys = reader.u64(), reader.u64()
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        raise reader.refused(f"the header counts {tensors} tensors and {keys} keys, at most {MAX_KEYS} are read")
    metadata: dict[str, Value] = {}
    for _ in range(keys):
        key = reader.text(MAX_KEY)
        if key in metadata:
            raise reader.refused(f"the header has the key {brief(key)} twice")
        metadata[key] = reader.value()
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
        raise reader.refused(f"general.alignment must be a multiple of 8 up to {1 << 20}, it is {brief(alignment)}")
    described = [_tensor(reader) for _ in range(tensors)]
    start = -(-reader.position // alignment) * alignment
    found: dict[str, StoredRows] = {}
    for name, shape, kind, offset in described:
        if name in found:
            raise reader.refused(f"the header has the tensor {brief(name)} twice")
        found[name] = _placed(reader, name, shape, kind, start + offset, size)
    return GgufHeader(path, metadata, found)


def _tensor(reader: HeaderReader) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape, type and offset as written; the file counts dimensions from the fastest on."""
    name = reader.text(MAX_NAME)
    count = reader.u32()
    if not 1 <= count <= MAX_DIMS:
        raise reader.refused(f"tensor {brief(name)} has {count} dimensions, 1 to {MAX_DIMS} are read")
    shape = tuple(reader.u64() for _ in range(count))[::-1]
    return name, shape, reader.u32(), reader.u64()


def _placed(reader: HeaderReader, name: str, shape: tuple[int, ...], number: int, offset: int, size: int) -> StoredRows:
    try:
        kind = GGMLQuantizationType(number)
    except ValueError:
        raise reader.refused(f"tensor {brief(name)} has the unknown type {number}") from None
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if min(shape) < 1 or shape[-1] % block:
        raise reader.refused(f"tensor {brief(name)} has shape {brief(shape)}, which {kind.name} does not store")
    stored = StoredRows(name, shape, kind, offset, shape[-1] // block * block_bytes)
    if offset + stored.bytes > size:
        raise reader.refused(f"tensor {brief(name)} does not lie inside the file")
    return stored
