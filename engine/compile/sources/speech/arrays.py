"""A `Checkpoint` over arrays that lie in one mapped file, under the names that transformers gives them."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.compile.sources.checkpoint import Checkpoint, Float32, finite
from engine.errors import CompileError
from engine.files import open_regular, shown

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def mapped(path: Path) -> Bytes:
    """The bytes of a regular file, read where they are looked at. CompileError when it cannot be opened."""
    try:
        open_regular(path).close()
        return np.memmap(path, np.uint8, "r")
    except (OSError, ValueError) as error:
        raise CompileError(f"{path} cannot be read: {shown(error) if isinstance(error, OSError) else error}") from error


class MappedReader:
    """Reads a little-endian file front to back; every number is checked against what is left."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = mapped(path)
        self.place = 0

    def number(self, form: str, most: int) -> int:
        """The next number, from 0 to `most`."""
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
        """The error for a damaged file."""
        return CompileError(f"{self.path} is damaged: {reason}")


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Codes as stored [rows, ...]. scale: of each row, what its codes are divided by, None = they are numbers."""

    codes: NDArray[np.generic]
    scale: Float32 | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the numbers."""
        return self.codes.shape

    @property
    def bytes(self) -> int:
        """As stored."""
        return self.codes.nbytes

    def rows(self, start: int, stop: int) -> "StoredArray":
        """Rows `start` to `stop` - 1, not copied."""
        return StoredArray(self.codes[start:stop], None if self.scale is None else self.scale[start:stop])

    def floats(self) -> Float32:
        """The numbers."""
        if self.codes.dtype == np.uint16:  # numpy has no bfloat16 of its own
            return np.asarray(self.codes.view(ml_dtypes.bfloat16), np.float32)
        values = self.codes.astype(np.float32)
        if self.scale is None:
            return values
        return np.asarray(values / self.scale.reshape(-1, *(1,) * (values.ndim - 1)), np.float32)


@dataclass(frozen=True, slots=True)
class BlockArray:
    """Rows of blocks as ggml stores them, in bytes. kind: ggml's number of the type. shape: of the numbers."""

    content: NDArray[np.uint8] = field(repr=False)
    kind: int
    shape: tuple[int, ...]

    @staticmethod
    def size_of(kind: int, shape: tuple[int, ...]) -> int:
        """Bytes of such an array. ValueError for a type that is not known, or rows that are no whole blocks."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType  # noqa: PLC0415 (takes a moment)

        numbers, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        if shape[-1] % numbers:
            raise ValueError(f"rows of {shape[-1]} are no blocks of {numbers}")
        return math.prod(shape) // numbers * size

    @property
    def bytes(self) -> int:
        """As stored."""
        return self.content.nbytes

    def rows(self, start: int, stop: int) -> "BlockArray":
        """Rows `start` to `stop` - 1, not copied."""
        each = self.content.nbytes // self.shape[0]
        return BlockArray(self.content[start * each : stop * each], self.kind, (stop - start, *self.shape[1:]))

    def floats(self) -> Float32:
        """The numbers."""
        from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 (takes a moment)
        from gguf.quants import dequantize  # noqa: PLC0415

        rows = self.content.reshape(math.prod(self.shape[:-1]), -1)
        with np.errstate(all="ignore"):  # what is not finite is refused where the numbers are read
            return np.asarray(dequantize(rows, GGMLQuantizationType(self.kind)), np.float32).reshape(self.shape)


ModelArray = StoredArray | BlockArray


class ArrayCheckpoint(Checkpoint):
    """arrays: by name."""

    def __init__(self, arrays: Mapping[str, ModelArray]) -> None:
        self._arrays = arrays
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def total_bytes(self) -> int:
        return sum(array.bytes for array in self._arrays.values())

    def unused(self) -> list[str]:
        return sorted(set(self._arrays) - self._used)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._array(name).shape

    def stored_bytes(self, name: str) -> int:
        return self._array(name).bytes

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        self.require(name, shape)
        return finite(name, self._array(name).floats())

    def rows(self, name: str, start: int, stop: int) -> Float32:
        return finite(name, self._array(name).rows(start, stop).floats())

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        if self.shape(name) != shape:
            raise CompileError(f"tensor {name} has shape {self.shape(name)}, the model makes it {shape}")
        self._used.add(name)

    def _array(self, name: str) -> ModelArray:
        if name not in self._arrays:
            raise CompileError(f"the checkpoint has no tensor {name}")
        return self._arrays[name]
