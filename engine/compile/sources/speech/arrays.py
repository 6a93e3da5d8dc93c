"""A `Checkpoint` over arrays that lie in one mapped file, under the names that transformers gives them."""

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.compile.sources.checkpoint import Checkpoint, Float32, finite
from engine.errors import CompileError


@dataclass(frozen=True, slots=True)
class StoredArray:
    """Codes as stored [rows, ...]. scale: of each row, what its codes are divided by, None = they are numbers. kind:
    ggml's number of the type of blocks, whose bytes the codes are; 0 = there are none."""

    codes: NDArray[np.generic]
    scale: Float32 | None = None
    kind: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        if not self.kind:
            return self.codes.shape
        from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 (takes a moment)
        from gguf.quants import quant_shape_from_byte_shape  # noqa: PLC0415

        return tuple(quant_shape_from_byte_shape(self.codes.shape, GGMLQuantizationType(self.kind)))

    @property
    def bytes(self) -> int:
        return self.codes.nbytes

    def rows(self, start: int, stop: int) -> "StoredArray":
        """Rows `start` to `stop` - 1, not copied."""
        return StoredArray(self.codes[start:stop], None if self.scale is None else self.scale[start:stop], self.kind)

    def floats(self) -> Float32:
        if self.kind:
            from gguf.constants import GGMLQuantizationType  # noqa: PLC0415 (takes a moment)
            from gguf.quants import dequantize  # noqa: PLC0415

            with np.errstate(all="ignore"):  # what is not finite is refused where the numbers are read
                return np.asarray(dequantize(self.codes, GGMLQuantizationType(self.kind)), np.float32)
        if self.codes.dtype == np.uint16:  # numpy has no bfloat16 of its own
            return np.asarray(self.codes.view(ml_dtypes.bfloat16), np.float32)
        values = self.codes.astype(np.float32)
        if self.scale is None:
            return values
        return np.asarray(values / self.scale.reshape(-1, *(1,) * (values.ndim - 1)), np.float32)


class ArrayCheckpoint(Checkpoint):
    """arrays: by name."""

    def __init__(self, arrays: Mapping[str, StoredArray]) -> None:
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

    def _array(self, name: str) -> StoredArray:
        if name not in self._arrays:
            raise CompileError(f"the checkpoint has no tensor {name}")
        return self._arrays[name]
