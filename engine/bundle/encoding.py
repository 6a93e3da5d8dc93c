"""How a tensor stores real numbers: as floats, or quantised, q = round(x / scale) + zero_point."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import TensorSpec
from engine.errors import BundleError

Array = NDArray[np.generic]
FLOATS = {"float32": -1e30, "float16": -30000.0}  # additive mask of a column that must not be seen
INTEGERS = ("uint8", "uint16", "int8", "int16")


@dataclass(frozen=True, slots=True)
class Encoding:
    """Type and, for integers, scale and zero point (ONNX sign) of a tensor."""

    dtype: str
    scale: float = 1.0
    zero_point: int = 0

    @property
    def is_float(self) -> bool:
        """Whether numbers are stored as they are."""
        return self.dtype in FLOATS

    def encode(self, values: NDArray[np.float64]) -> Array:
        """Round to the nearest code and clamp; float64 of any shape in, the same shape out."""
        if self.is_float:
            return values.astype(self.dtype)
        limits = np.iinfo(self.dtype)
        codes = np.clip(np.rint(values / self.scale) + self.zero_point, limits.min, limits.max)
        return np.asarray(codes.astype(self.dtype))

    def decode(self, codes: Array) -> NDArray[np.float32]:
        """Real numbers of stored ones."""
        if self.is_float:
            return np.asarray(codes, np.float32)
        return (codes.astype(np.float32) - np.float32(self.zero_point)) * np.float32(self.scale)

    def mask_codes(self) -> Array:
        """[2]: the code of a column that is hidden, then of one that is seen (which must be exactly 0)."""
        if self.is_float:
            return np.array([FLOATS[self.dtype], 0.0], self.dtype)
        codes = self.encode(np.array([-np.inf, 0.0]))
        if self.decode(codes[1:])[0] != 0.0:
            raise BundleError(f"the attention mask cannot say 0: scale {self.scale}, zero point {self.zero_point}")
        return codes


def encoding_of(tensor: TensorSpec) -> Encoding:
    """Encoding of a tensor; BundleError when it is of another type or lacks its scale."""
    if tensor.dtype in FLOATS:
        return Encoding(tensor.dtype)
    if tensor.dtype not in INTEGERS:
        raise BundleError(f"tensor {tensor.name} has the unsupported type {tensor.dtype}")
    if tensor.scale is None or tensor.zero_point is None:
        raise BundleError(f"tensor {tensor.name} is {tensor.dtype} but has no scale or zero point")
    return Encoding(tensor.dtype, tensor.scale, tensor.zero_point)
